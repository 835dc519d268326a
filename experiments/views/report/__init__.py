"""Reports of runs, comparisons, reproductions and sweeps: one HTML file each, which needs no network."""

from pathlib import Path

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from ...results.comparison import Comparison
from ...results.reproduction import Reproduction
from ...results.run import Run
from ...results.sweep import Sweep
from .of_comparison import page_of_comparison
from .of_reproduction import page_of_reproduction
from .of_run import page_of_run
from .of_sweep import page_of_sweep
from .page import Page


def report_of(result: Run | Comparison | Reproduction | Sweep) -> Page:
    """Return the report of a result, as values."""
    match result:
        case Run():
            return page_of_run(result)
        case Comparison():
            return page_of_comparison(result)
        case Reproduction():
            return page_of_reproduction(result)
        case Sweep():
            return page_of_sweep(result)


def write_report(result: Run | Comparison | Reproduction | Sweep, path: Path) -> Path:
    """Write the report of a result, and return the file; its folder is made if it is not there."""
    from .html import render  # imported late: it starts a JavaScript engine, which takes a second

    content = render(report_of(result)).encode()
    with explain_write_errors("the report", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return path

"""Reports of runs, comparisons, reproductions and sweeps: one HTML file each, which needs no network."""

from collections.abc import Mapping
from functools import singledispatch
from pathlib import Path

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from ...results.comparison import Comparison
from ...results.reproduction import Reproduction
from ...results.run import Run
from ...results.sweep import Sweep
from .of_comparison import page_of_comparison
from .of_comparisons import page_of_comparisons
from .of_reproduction import page_of_reproduction
from .of_run import page_of_run
from .of_sweep import page_of_sweep
from .page import Page

FIGURES = "figures"
"""The folder of a report's charts as SVG, beside the report."""


@singledispatch
def page_of(result: object) -> Page:
    """Return the report of a result, as values; another kind of result registers its own."""
    raise NotImplementedError(f"there is no report of {type(result).__name__}: register page_of for it")


page_of.register(Run, page_of_run)
page_of.register(Comparison, page_of_comparison)
page_of.register(Mapping, page_of_comparisons)
page_of.register(Reproduction, page_of_reproduction)
page_of.register(Sweep, page_of_sweep)


def write_report(result: object, path: Path, *, svg: bool = False) -> list[Path]:
    """Write the report of a result, or of comparisons by the names of their tasks, and return the files.

    The folder of `path` is made if it is not there. `svg` also writes the charts as SVG, into figures/ beside it.
    """
    from ..figures import draw_svg  # imported late: it starts a JavaScript engine, which takes a second
    from .charts import for_paper
    from .html import render

    page = page_of(result)
    files = {path: render(page).encode()}
    if svg:
        for chart in page.charts:
            files[path.parent / FIGURES / f"{chart.name}.svg"] = draw_svg(for_paper((chart.title, chart.spec)))
    with explain_write_errors("the report", path.parent):
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)
    return list(files)

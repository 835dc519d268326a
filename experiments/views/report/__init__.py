"""Reports of runs, comparisons, reproductions and sweeps: one HTML file each, which needs no network."""

from collections.abc import Mapping
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from ...results.comparison import Comparison
from ...results.reproduction import Reproduction
from ...results.run import Run
from ...results.sweep import Sweep

if TYPE_CHECKING:
    from .page import Page

FIGURES = "figures"
"""The folder of a report's charts as SVG, beside the report."""


@singledispatch
def page_of(result: object) -> "Page":
    """Return the report of a result, as values; another kind of result registers its own."""
    raise NotImplementedError(f"there is no report of {type(result).__name__}: register page_of for it")


@page_of.register(Run)
def _of_run(run: Run) -> "Page":
    from .of_run import page_of_run

    return page_of_run(run)


@page_of.register(Comparison)
def _of_comparison(comparison: Comparison) -> "Page":
    from .of_comparison import page_of_comparison

    return page_of_comparison(comparison)


@page_of.register(Mapping)
def _of_comparisons(comparisons: Mapping[str, Comparison]) -> "Page":
    from .of_comparisons import page_of_comparisons

    return page_of_comparisons(comparisons)


@page_of.register(Reproduction)
def _of_reproduction(reproduction: Reproduction) -> "Page":
    from .of_reproduction import page_of_reproduction

    return page_of_reproduction(reproduction)


@page_of.register(Sweep)
def _of_sweep(swept: Sweep) -> "Page":
    from .of_sweep import page_of_sweep

    return page_of_sweep(swept)


def write_report(result: object, path: Path, *, svg: bool = False) -> list[Path]:
    """Write the report of a result, and return the files.

    Parameters
    ----------
    result
        A run, a comparison, several of them by the names of their tasks, a reproduction, or a sweep.
    path
        The file; the folder that it is in is made if it is not there.
    svg
        Whether to write the charts as SVG as well, into the folder figures/ beside it.

    Raises
    ------
    FairbloomError
        When what the runs recorded cannot be read, or the disk does not take the files.
    """
    return write_page(page_of(result), path, svg=svg)


def write_page(page: "Page", path: Path, *, svg: bool = False) -> list[Path]:
    """Write a page, and return the files; see `write_report`."""
    from ..figures import draw_svg
    from .charts import for_paper
    from .html import render

    files = {path: render(page).encode()}
    if svg:
        for chart in page.charts:
            files[path.parent / FIGURES / f"{chart.name}.svg"] = draw_svg(for_paper((chart.title, chart.spec)))
    with explain_write_errors("the report", path.parent):
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)
    return list(files)

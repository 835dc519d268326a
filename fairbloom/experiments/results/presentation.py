"""Show results: each has a page, which a terminal, a notebook, a report or a figure renders.

The pages of results lie above them, in `fairbloom.experiments.pages`, which registers one function
for each class.
"""

from dataclasses import replace
from functools import singledispatch
from pathlib import Path

from fairbloom.server.run_folder.errors import explain_write_errors
from fairbloom.system.files import write_whole

from ..render.figures import VegaLite, check_figure, spec_of, write_charts
from ..render.html import render, render_fragment
from ..render.page import Page
from ..render.terminal import show_page


@singledispatch
def page_of(result: object) -> Page:
    """Return the page of a result."""
    raise NotImplementedError(
        f"no page of {type(result).__name__} is registered: import fairbloom.experiments.api, as"
        " `fairbloom.load` does, or register one"
    )


class Shown:
    """A result that shows itself in a terminal and in a notebook."""

    def __repr__(self) -> str:
        """Return what it is and what it says first, in a line."""
        page = page_of(self)
        return f"{type(self).__name__}({page.title}: {page.headline})"

    def show(self) -> None:
        """Print it as the command line does."""
        show_page(page_of(self))

    def _repr_html_(self) -> str:
        return render_fragment(page_of(self))

    def chart(self) -> VegaLite:
        """Return its chart as a Vega-Lite specification, which a notebook draws.

        Raises
        ------
        FairbloomError
            When there is nothing to draw.
        """
        return spec_of(page_of(self).make_figure())


def write_report(result: object, path: Path, title: str = "") -> Path:
    """Write the report of a result, and return the file; its folder is created."""
    page = page_of(result)
    content = render(replace(page, title=title or page.title)).encode()
    with explain_write_errors("the report", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return path


def write_figure(result: object, *paths: Path) -> None:
    """Write the chart of a result as PDF, SVG or PNG, by the endings of the files.

    The same chart is the same bytes, except of PDF.
    """
    for path in paths:
        check_figure(path)
    charts = page_of(result).make_figure()
    for path in paths:
        write_charts(charts, path)

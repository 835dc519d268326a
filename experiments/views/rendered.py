"""A page in a terminal, in a notebook and as a chart: what the methods of results call."""

from typing import Any

from ..results.presentation import draw_page, render_page, show_page
from .report.page import Page


@show_page.register
def _show(page: Page) -> None:
    from . import terminal  # imported late, as all here: what prints and draws takes a second

    terminal.show_page(page)


@render_page.register
def _render(page: Page) -> str:
    from .figures import render_image
    from .report.html import render_fragment

    return render_fragment(page) + (render_image(page.figure()) if page.figure else "")


@draw_page.register
def _draw(page: Page) -> dict[str, Any]:
    from .figures import spec_of

    return spec_of(page.make_figure())

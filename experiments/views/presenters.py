"""Registers the views of results: importing this module makes their methods `chart`, `show` and `_repr_html_` work.

Figures and HTML are imported when they are first asked for, because the libraries that draw take a second.
"""

from typing import TYPE_CHECKING

from ..results.comparison import Comparison
from ..results.presentation import Shown, chart, render_html, show, write_card
from ..results.reproduction import Reproduction
from ..results.run import Run
from ..results.sweep import Sweep
from .terminal import show_page

if TYPE_CHECKING:
    from altair.typing import ChartType

    from fairbloom.prediction.export.described import DescribedModel


def _show(result: object) -> None:
    from .summary import summary_of

    show_page(summary_of(result))


def _chart(result: object) -> "ChartType":
    from .figures import build_chart

    return build_chart(result)


def _render_html(result: object) -> str:
    """Return the summary of a result, with its chart where it has one."""
    from .figures import render_image
    from .report.html import render_fragment
    from .summary import summary_of

    drawn = isinstance(result, Comparison | Sweep) or (isinstance(result, Run) and result.final())
    return render_fragment(summary_of(result)) + (render_image(result) if drawn else "")


show.register(Shown, _show)
render_html.register(Shown, _render_html)
for drawn in (Run, Comparison, Reproduction, Sweep):
    chart.register(drawn, _chart)


@show.register(Comparison)
def _show_comparison(comparison: Comparison, spread: str = "interval") -> None:
    from .summary import summary_of_comparison

    show_page(summary_of_comparison(comparison, spread))


@write_card.register(Run)
def _write_card(run: Run, described: "DescribedModel") -> str:
    from .card import ModelCard

    return ModelCard(run, described).write()

"""Registers the views of results: importing this module makes their methods `chart`, `show` and `_repr_html_` work.

Figures and HTML are imported when they are first asked for, because the libraries that draw take a second.
"""

from typing import TYPE_CHECKING

from ..results.comparison import Comparison
from ..results.evaluation import Evaluation
from ..results.presentation import chart, render_html, show, write_card
from ..results.recommendation import Recommendation
from ..results.reproduction import Reproduction
from ..results.run import Run
from ..results.sweep import Sweep
from .evaluation import show_evaluation
from .recommendation import show_recommendation
from .sweep_table import show_sweep
from .tables import show_comparison, show_reproduction, show_run

if TYPE_CHECKING:
    from altair.typing import ChartType

    from fairbloom.prediction.export.described import DescribedModel

show.register(Run, show_run)
show.register(Comparison, show_comparison)
show.register(Reproduction, show_reproduction)
show.register(Sweep, show_sweep)
show.register(Recommendation, show_recommendation)
show.register(Evaluation, show_evaluation)


def _chart(result: object) -> "ChartType":
    from .figures import build_chart

    return build_chart(result)


@write_card.register(Run)
def _write_card(run: Run, described: "DescribedModel") -> str:
    from .card import ModelCard

    return ModelCard(run, described).write()


for kind in (Run, Comparison, Reproduction, Sweep):
    chart.register(kind, _chart)


@render_html.register(Run)
def _render_run(run: Run) -> str:
    from .notebook import html_of_run

    return html_of_run(run)


@render_html.register(Comparison)
def _render_comparison(comparison: Comparison) -> str:
    from .notebook import html_of_comparison

    return html_of_comparison(comparison)


@render_html.register(Sweep)
def _render_sweep(swept: Sweep) -> str:
    from .notebook import html_of_sweep

    return html_of_sweep(swept)


@render_html.register(Recommendation)
def _render_recommendation(found: Recommendation) -> str:
    from .notebook import html_of_recommendation

    return html_of_recommendation(found)

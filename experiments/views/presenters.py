"""Registers the views of results: importing this module makes their methods `figure`, `show` and `_repr_html_` work.

Figures and HTML are imported when they are first asked for, because matplotlib takes a second.
"""

from typing import TYPE_CHECKING

from ..results.comparison import Comparison
from ..results.evaluation import Evaluation
from ..results.presentation import draw, render_html, show, write_card
from ..results.recommendation import Recommendation
from ..results.reproduction import Reproduction
from ..results.run import Run
from ..results.sweep import Sweep
from .evaluation import show_evaluation
from .recommendation import show_recommendation
from .sweep_table import show_sweep
from .tables import show_comparison, show_reproduction, show_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairbloom.prediction.export.described import DescribedModel

show.register(Run, show_run)
show.register(Comparison, show_comparison)
show.register(Reproduction, show_reproduction)
show.register(Sweep, show_sweep)
show.register(Recommendation, show_recommendation)
show.register(Evaluation, show_evaluation)


@draw.register(Run)
def _draw_run(run: Run) -> "Figure":
    from .figures import draw_rounds

    return draw_rounds(run)


@write_card.register(Run)
def _write_card(run: Run, described: "DescribedModel") -> str:
    from .card import ModelCard

    return ModelCard(run, described).write()


@draw.register(Comparison)
def _draw_comparison(comparison: Comparison) -> "Figure":
    from .figures import draw_sorted_clients

    return draw_sorted_clients(comparison)


@draw.register(Reproduction)
def _draw_reproduction(reproduction: Reproduction) -> "Figure":
    from .figures import draw_reproduction

    return draw_reproduction(reproduction)


@draw.register(Sweep)
def _draw_sweep(swept: Sweep) -> "Figure":
    from .sweep_figure import draw_points

    return draw_points(swept)


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

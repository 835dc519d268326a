"""How results are shown to people: each view, which lies above the results, registers itself for a class of them."""

from functools import singledispatch
from typing import TYPE_CHECKING, Never

if TYPE_CHECKING:
    from altair.typing import ChartType

    from fairbloom.prediction.export.described import DescribedModel


@singledispatch
def chart(result: object) -> "ChartType":
    """Return the chart of a result."""
    _raise_missing(result)


@singledispatch
def show(result: object, spread: str = "") -> None:
    """Print a result as the command line does; `spread` says how a comparison prints uncertainty."""
    _raise_missing(result)


@singledispatch
def render_html(result: object) -> str:
    """Return the HTML of a result that a notebook shows."""
    _raise_missing(result)


@singledispatch
def write_card(result: object, described: "DescribedModel") -> str:
    """Return the model card of a model of a result."""
    _raise_missing(result)


class Shown:
    """A result that shows itself in a terminal and in a notebook."""

    def show(self) -> None:
        """Print it as the command line does."""
        show(self)

    def _repr_html_(self) -> str:
        return render_html(self)


def _raise_missing(result: object) -> Never:
    raise NotImplementedError(
        f"no view of {type(result).__name__} is registered: import fairbloom.experiments.api, as "
        "`fairbloom.load` does, or register one"
    )

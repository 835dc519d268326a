"""How results are shown to people: the views, which lie above the results, register a page for each class of them."""

from functools import singledispatch
from typing import Any


@singledispatch
def page_of(result: object, spread: str = "") -> Any:  # a page of the views, which results do not know
    """Return the page of a result; a comparison's takes how it shows uncertainty, by `spread`."""
    raise NotImplementedError(
        f"no page of {type(result).__name__} is registered: import fairbloom.experiments.api, as `fairbloom.load` "
        "does, or register one"
    )


@singledispatch
def show_page(page: object) -> None:
    """Print a page of the views."""
    raise NotImplementedError(f"{type(page).__name__} is no page")


@singledispatch
def render_page(page: object) -> str:
    """Return the HTML of a page of the views, with its figure."""
    raise NotImplementedError(f"{type(page).__name__} is no page")


@singledispatch
def draw_page(page: object) -> dict[str, Any]:
    """Return the figure of a page of the views as a Vega-Lite specification, which a notebook draws."""
    raise NotImplementedError(f"{type(page).__name__} is no page")


class Shown:
    """A result that shows itself in a terminal and in a notebook."""

    def show(self) -> None:
        """Print it as the command line does."""
        show_page(page_of(self))

    def _repr_html_(self) -> str:
        return render_page(page_of(self))


class Drawn(Shown):
    """A result that has a chart, too."""

    def chart(self) -> dict[str, Any]:
        """Return its chart as a Vega-Lite specification, which a notebook draws.

        Raises
        ------
        FairbloomError
            When there is nothing to draw yet.
        """
        return draw_page(page_of(self))

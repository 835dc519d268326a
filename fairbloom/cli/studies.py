"""Commands that train, `fairbloom run`, `compare`, `refit`, `search`, `reproduce`; `evaluate`."""

import traceback
from collections.abc import Callable
from typing import Any

import typer

from fairbloom.command import CORRECTABLE, print_json
from fairbloom.errors import FairbloomError
from fairbloom.experiments import api
from fairbloom.experiments.recipe import count_printed, load_recipe, names
from fairbloom.experiments.results.run import final_of
from fairbloom.protocol.settings import SettingsError
from fairbloom.tasks.permit import permit_reading

from .lists import show_recipes
from .results import show_result
from .settings_command import command


@command(api.run)
def run(*, debug: bool = False, **values: Any) -> None:
    """Train, and show the run."""
    try:
        finished = api.run(debug=debug, **values)
        if not finished.untested:
            final_of(finished)  # a run that measured no client is an error, never a success
        finished.show()
    except FairbloomError:
        if not debug:
            raise
        traceback.print_exc()
        raise typer.Exit(CORRECTABLE) from None


def shown(function: Callable[..., Any], **about: Any) -> Callable[..., None]:
    """Return the command that calls a function and shows its result."""

    def carry_out(*, as_json: bool = False, **values: Any) -> None:
        show_result(function(**values), as_json)

    return command(function, **about)(carry_out)


compare = shown(api.compare)
search = shown(api.search, like=api.compare)
refit = shown(api.refit, folder="FOLDER")
evaluate = shown(permit_reading()(api.evaluate), run="RUN")


@command(api.reproduce, like=api.compare, name="[NAME]")
def reproduce(
    *, name: str | None = None, as_list: bool = False, as_json: bool = False, **values: Any
) -> None:
    """Reproduce, and show the numbers.

    Parameters
    ----------
    as_list
        List the recipes without running anything.
    """
    if as_list:
        recipes = [*map(load_recipe, names())]
        if as_json:
            print_json([recipe.summary for recipe in recipes])
        else:
            show_recipes(recipes, *count_printed(recipes))
    elif name is None:
        raise SettingsError("no recipe is named: fairbloom reproduce --list names them")
    else:
        show_result(api.reproduce(name, **values), as_json)

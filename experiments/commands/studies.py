"""The commands that train: `fairbloom run`, `compare`, `search` and `reproduce`, and `evaluate`."""

import json
import traceback
from typing import Annotated, Any

import typer

from fairbloom.command import CORRECTABLE
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import SettingsError

from .. import api
from ..recipe import load_shipped
from ..results.run import final_of
from .lists import show_recipes
from .made import JSON, make_command
from .options import MethodOption, SeedOption, show_result


def _run(*, debug: bool, **values: Any) -> None:
    try:
        finished = api.run(debug=debug, **values)
        final_of(finished)  # a run that measured no client is an error, never a success
        finished.show()
    except FairbloomError:
        if not debug:
            raise
        traceback.print_exc()
        raise typer.Exit(CORRECTABLE) from None


def _compare(**values: Any) -> None:
    api.compare(**values).show()


def _search(*, as_json: bool, **values: Any) -> None:
    show_result(api.search(**values), as_json)


def _reproduce(*, name: str | None, as_list: bool, finished: bool, as_json: bool, **values: Any) -> None:
    if as_list:
        recipes = list(load_shipped())
        if as_json:
            print(json.dumps([recipe.summary for recipe in recipes], indent=2))
        else:
            show_recipes(recipes)
    elif name is None:
        raise SettingsError("no recipe is named: fairbloom reproduce --list names them")
    else:
        show_result(api.reproduce(name, run=not finished, **values), as_json)


def _evaluate(*, as_json: bool, **values: Any) -> None:
    show_result(api.evaluate(**values), as_json)


run = make_command(api.run, _run, declared={"method": MethodOption, "seed": SeedOption})
compare = make_command(api.compare, _compare)
search = make_command(api.search, _search, metavars={"grid": "KEY=VALUES", "budget": "MINUTES"}, more=JSON)
reproduce = make_command(
    api.reproduce,
    _reproduce,
    arguments={"name": "[NAME]"},
    metavars={"rows": "TEXT"},
    more={
        "as_list": (Annotated[bool, typer.Option("--list", help="List the recipes without running anything.")], False),
        "finished": (
            Annotated[
                bool, typer.Option("--show", help="Print the table of the finished runs without running anything.")
            ],
            False,
        ),
        **JSON,
    },
    without=("run",),
)
evaluate = make_command(api.evaluate, _evaluate, arguments={"run": "RUN"}, more=JSON)

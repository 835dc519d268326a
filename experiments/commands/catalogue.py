"""The commands `fairbloom methods`, `fairbloom tasks` and `fairbloom settings`: what there is."""

import json
from typing import Annotated

import typer

from fairbloom.server.settings import default_config
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS, find_task

from .described import about, describe
from .lists import show_methods, show_settings, show_tasks, show_torchjd
from .options import JsonOption

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Describe only these, or your own as my_module:Mine.")
]


def methods(names: NamesArgument = None, as_json: JsonOption = False) -> None:
    """List the methods with their parameters, ranges, defaults and source."""
    described = [describe(name) for name in names or METHODS]
    if as_json:
        print(
            json.dumps([{**vars(each), "parameters": [*map(about, each.parameters)]} for each in described], indent=2)
        )
    else:
        show_methods(described)
        if not names:
            show_torchjd()


def tasks(names: NamesArgument = None, as_json: JsonOption = False) -> None:
    """List the tasks with their models, partitions and settings."""
    described = [find_task(name) for name in names or TASKS]
    if as_json:
        print(json.dumps([{**vars(each), "settings": [*map(about, each.settings)]} for each in described], indent=2))
    else:
        show_tasks(described)


def settings(as_json: JsonOption = False) -> None:
    """List all settings with their defaults. Change one with --set KEY=VALUE."""
    defaults = default_config()
    if as_json:
        print(json.dumps(defaults, indent=2))
    else:
        show_settings(defaults)

"""The commands `fairbloom methods`, `fairbloom tasks` and `fairbloom settings`: what there is."""

import json
from typing import Annotated

import typer

from fairbloom.errors import did_you_mean
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.settings import default_config
from fairbloom.strategies import METHODS
from fairbloom.tasks import TASKS, find_task

from .lists import describe_method, describe_task, show_list, show_settings, show_torchjd
from .options import JsonOption

NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Describe only these, or your own as my_module:Mine.")
]
SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Only those with this in their name: qfedavg, rate.")
]


def methods(names: NamesArgument = None, as_json: JsonOption = False) -> None:
    """List the methods with their parameters, ranges, defaults and source."""
    described = [describe_method(name) for name in names or METHODS]
    if as_json:
        print(json.dumps(described, indent=2))
        return
    show_list(described)
    if not names:
        show_torchjd()


def tasks(names: NamesArgument = None, as_json: JsonOption = False) -> None:
    """List the tasks with their models, partitions and settings."""
    described = [describe_task(find_task(name)) for name in names or TASKS]
    if as_json:
        print(json.dumps(described, indent=2))
    else:
        show_list(described)


def settings(names: SettingsArgument = None, as_json: JsonOption = False) -> None:
    """List all settings with their defaults. Change one with --set KEY=VALUE."""
    defaults = default_config()
    for name in names or ():
        if not any(_is_of(key, name) for key in defaults):
            raise SettingsError(f"there is no setting {name}: {did_you_mean(name, defaults)}leave it out to see all")
    shown = {key: value for key, value in defaults.items() if not names or any(_is_of(key, name) for name in names)}
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        show_settings(shown)


def _is_of(key: str, name: str) -> bool:
    """Return whether a setting has a word in its name, or belongs to a method or task."""
    return name.replace("_", "-").lower() in key

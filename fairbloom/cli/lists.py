"""Lists on the command line: methods, tasks, settings and recipes."""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from fairbloom.command import print_json
from fairbloom.errors import did_you_mean
from fairbloom.experiments.render.page import Cell, Table
from fairbloom.experiments.render.terminal import console, show_table
from fairbloom.protocol.parameters import Parameter, parameters_of
from fairbloom.protocol.settings import SETTINGS, SettingsError
from fairbloom.server.settings import default_config, parameters
from fairbloom.strategies import METHODS, FromTorchJD, canonical, find_method
from fairbloom.strategies.named import format_value
from fairbloom.strategies.registry import source_of
from fairbloom.strategies.torchjd import TORCHJD
from fairbloom.tasks import TASKS, TaskInfo, find_task

from .settings_command import command

if TYPE_CHECKING:
    from fairbloom.experiments.recipe import Recipe

# The text for a parameter without a default.
REQUIRED = "required"

# The headings above the settings of all runs, by the first setting of each.
GROUPS: Mapping[str, str] = {
    "task": "Task and data",
    "method": "Method",
    "num-rounds": "Rounds and clients' training",
    "attack": "Attack of an experiment",
    "training-clients": "Evaluation",
    "round-timeout": "Deployed clients",
    "unused-rounds": "Replies that are refused",
    "engine": "Computing",
    "own-settings": "Files",
}


# Methods, tasks and settings ----------------------------------------------------------------------


@command(names="[NAME]...")
def methods(names: Sequence[str] = (), *, as_json: bool = False) -> None:
    """List the methods with their parameters, ranges, defaults and source.

    Parameters
    ----------
    names
        Describe only these, or your own as my_module:Mine.
    """
    _show_described([describe_method(name) for name in names or METHODS], as_json)
    if not names and not as_json:
        first_paragraph = (inspect.getdoc(FromTorchJD) or "").partition("\n\n")[0]
        summary = " ".join(first_paragraph.split())
        _print(f"[b]{TORCHJD}upgrad[/] and its like  {escape(summary)}", indent=0)


@command(names="[NAME]...")
def tasks(names: Sequence[str] = (), *, as_json: bool = False) -> None:
    """List the tasks with their models, partitions and settings.

    Parameters
    ----------
    names
        Describe only these, or your own as my_module:task.
    """
    _show_described([describe_task(find_task(name)) for name in names or TASKS], as_json)


@command(names="[NAME]...")
def settings(names: Sequence[str] = (), *, as_json: bool = False) -> None:
    """List all settings with their defaults. Change one with --set KEY=VALUE.

    Parameters
    ----------
    names
        Only those with this in their name: qfedavg, rate.
    """
    defaults = default_config()
    words = [name.replace("_", "-").lower() for name in names]
    for word, name in zip(words, names, strict=True):
        if not any(word in key for key in defaults):
            raise SettingsError(
                f"unknown setting {name}: {did_you_mean(name, defaults)}leave it out to see all"
            )
    shown = defaults
    if words:
        shown = {}
        for key, value in defaults.items():
            if any(word in key for word in words):
                shown[key] = value
    if as_json:
        print_json(shown)
        return
    known = {**SETTINGS, **parameters()}
    group = ""
    heading = ""
    for key, value in defaults.items():
        group = key.rpartition(".")[0] or GROUPS.get(key, group)
        if key not in shown:
            continue
        if group != heading:
            heading = group
            console.print(f"\n[b]{escape(heading)}[/]")
        default = REQUIRED if known[key].default is None else repr(value)
        console.print(f"[cyan]{key}[/] = {escape(default)}")
        _print(escape(f"{known[key].description} ({known[key].range})"))


def describe_method(name: str) -> dict[str, Any]:
    """Return a method's entry in a list: name, summary, parameters and source."""
    method = find_method(name)
    text = inspect.getdoc(method) or ""
    own = () if issubclass(method, FromTorchJD) else parameters_of(method.__name__.lower(), method)
    return {
        "name": canonical(name),
        "summary": " ".join(text.partition("\n\n")[0].split()),
        "parameters": [*map(_describe, own)],
        "source": source_of(method),
    }


def describe_task(task: TaskInfo) -> dict[str, Any]:
    """Return a task's entry in a list: name, summary, models, partitions and parameters."""
    folder = {
        "key": "data-dir",
        "range": "folder",
        "default": REQUIRED,
        "description": "Folder of the data",
    }
    parameters = [*map(_describe, task.settings)]
    if task.reads:
        parameters.insert(0, folder)
    return {
        "name": task.name,
        "summary": task.summary,
        "models": list(task.models),
        "partitions": task.listed_partitions,
        "parameters": parameters,
        "source": task.source,
    }


def _describe(parameter: Parameter) -> dict[str, str]:
    return {
        "key": parameter.key,
        "range": parameter.range,
        "default": REQUIRED if parameter.default is None else format_value(parameter.default),
        "description": parameter.description,
    }


def _show_described(described: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print methods or tasks: what each is, its choices and parameters, and its source."""
    if as_json:
        print_json(described)
        return
    for entry in described:
        _print(f"[b]{escape(entry['name'])}[/]  {escape(entry['summary'])}", indent=0)
        for what in ("models", "partitions"):
            if entry.get(what):
                _print(f"{what}: {escape(', '.join(entry[what]))}")
        for one in entry["parameters"]:
            default = one["default"] or repr("")
            if default != REQUIRED:
                default = f"default {default}"
            about = f"({one['range']}, {default}) {one['description']}"
            _print(f"[cyan]{one['key']}[/] {escape(about)}")
        if entry["source"]:
            _print(f"[dim]{escape(entry['source'])}[/]")
        console.print()


def _print(markup: str, indent: int = 4) -> None:
    console.print(
        Padding(Text.from_markup(markup, overflow="fold"), (0, 0, 0, indent), expand=False),
        width=min(console.width, 100),  # a file or a pipe has no edge at which to wrap
    )


# Recipes ------------------------------------------------------------------------------------------


def show_recipes(recipes: Sequence["Recipe"], ran: int, printed: int) -> None:
    """Print the recipes: what each is, its data, and of how many printed numbers it `ran`."""
    cells = []
    for recipe in recipes:
        cells.append(
            [
                Cell(recipe.name),
                Cell(recipe.title),
                Cell(", ".join(recipe.tasks)),
                Cell.of(len(recipe.rows)),
                Cell.of(recipe.runs),
                Cell(recipe.ran_in_words),
            ]
        )
    note = (
        f"runs: with the recipe's number of seeds. {ran} of {printed} printed numbers were run; no"
        " data: they were not at hand"
    )
    show_table(
        Table("recipes", "", ("name", "what", "data", "rows", "runs", "was run"), cells, note)
    )

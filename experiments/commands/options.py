"""The options that several commands have, each with its help; `fairbloom.cli` makes commands of functions with them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand

from fairbloom.errors import find_nearest
from fairbloom.protocol.settings import SETTINGS, Value, key_of, parse_assignments, parsed
from fairbloom.server.settings import default_config
from fairbloom.system.processors import processors_here

from ..api import Evaluation, Reproduction, Search
from ..options import merge_settings


class SettingsCommand(TyperCommand):
    """A command with --set: where a setting is given as an option, misspelt or not, the error says how to set it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key, settings = key_of(error.option_name.lstrip("-")), default_config()
            options = {name.lstrip("-") for each in self.params for name in each.opts}
            others = (f"{key}s", key.removesuffix("s"))  # a run has --method and --seed, a study --methods
            for other in (*others, *(["rows"] if key.startswith("method") else [])):  # which a recipe has
                if other in options:
                    message = f"No such option {error.option_name!r}: write --{other}."
                    raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            nearest = key if key in settings else find_nearest(key, [*options, *settings])
            if nearest is None or nearest in options:
                raise
            say = f"write --set {key}=VALUE." if nearest == key else f"did you mean --set {nearest}=VALUE?"
            message = f"No such option {error.option_name!r}: {say}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None


class OneValue(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """The value of an option that stands for a setting, whose own words say what it may be."""

    def __init__(self, key: str) -> None:
        self._setting = SETTINGS[key]
        self.name = {int: "integer", float: "float"}[self._setting.kind]

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Return the value; raise SettingsError where the setting cannot have it."""
        called = param.opts[0] if param else ""
        return self._setting.checked(parsed(value) if isinstance(value, str) else value, called)


def setting_option(key: str, more: str = "", metavar: str | None = None) -> Any:
    """Return the option that stands for a setting: it means what the setting does, and has its range."""
    setting = SETTINGS[key]
    number = OneValue(key) if setting.kind in (int, float) else None
    return typer.Option(click_type=number, metavar=metavar, help=f"{setting.description}. {more}".strip())


TaskOption = Annotated[str | None, setting_option("task")]
DataOption = Annotated[str | None, typer.Option("--data-dir", help="The folder that the task reads its data from.")]
SchemaOption = Annotated[str | None, setting_option("schema", metavar="FILE")]
MethodOption = Annotated[
    str | None, setting_option("method", "Its parameters may follow in parentheses: 'fedfv(alpha=0.2)'.")
]
ModelOption = Annotated[str | None, setting_option("model")]
ClientsOption = Annotated[int | None, setting_option("clients")]
PartitionOption = Annotated[str | None, setting_option("partition")]
FractionOption = Annotated[float | None, setting_option("fraction")]
SeedOption = Annotated[int | None, setting_option("seed")]
DeviceOption = Annotated[str | None, setting_option("device")]

ENGINES = (
    "loop computes one client at a time, stacked many as one tensor, workers in several processes. All give the same "
    "numbers, up to rounding."
)
COMMON: Mapping[str, Any] = {
    "data_dir": DataOption,
    "schema": SchemaOption,
    "model": ModelOption,
    "clients": ClientsOption,
    "partition": PartitionOption,
    "rounds": Annotated[int | None, setting_option("num-rounds")],
    "fraction": FractionOption,
    "score": Annotated[str | None, setting_option("score")],
    "engine": Annotated[str | None, setting_option("engine", ENGINES)],
    "device": DeviceOption,
    "memory": Annotated[float | None, setting_option("memory", metavar="GB")],
}
"""What the command line says of the common options."""

SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set any setting; fairbloom settings lists them. May be repeated."),
]
DEFAULT_JOBS = processors_here()
JobsOption = Annotated[int, typer.Option(min=1, help="The number of runs at the same time; they share the processors.")]
FigureOption = Annotated[
    Path | None, typer.Option("--figure", metavar="PATH", help="Also draw a figure into PATH.png and PATH.svg.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def settings_of(assignments: Iterable[str]) -> dict[str, Value]:
    """Return the settings of KEY=VALUE assignments; raise FairbloomError for one that is none, or has two values."""
    config: dict[str, Value] = {}
    for assignment in assignments:
        config = merge_settings(config, parse_assignments([assignment]))
    return config


def show_result(result: Evaluation | Reproduction | Search, as_json: bool) -> None:
    """Print what a study has found: as tables, or as JSON."""
    if as_json:
        print(json.dumps(result.as_json, indent=2))
    else:
        result.show()

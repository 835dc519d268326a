"""The options that several commands have, each with its help; `fairbloom.cli` makes commands of functions with them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import click
import typer

from fairbloom.protocol.settings import SETTINGS, Value, assigned, parsed

from ..api import merge_settings


class OneValue(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """The value of an option that stands for a setting, whose own words say what it may be."""

    def __init__(self, key: str) -> None:
        self._setting = SETTINGS[key]
        self.name = {int: "integer", float: "float"}[self._setting.kind]

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Return the value; raise SettingsError where the setting cannot have it."""
        called = param.opts[0] if param else ""
        return self._setting.checked(parsed(value) if isinstance(value, str) else value, called)


SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set any setting; fairbloom settings lists them. May be repeated."),
]
TaskOption = Annotated[
    str | None,
    typer.Option(help="The task to learn: one that fairbloom tasks lists, or a user-defined one as my_module:task."),
]
DataOption = Annotated[str | None, typer.Option("--data-dir", help="The folder that the task reads its data from.")]
MethodOption = Annotated[
    str | None,
    typer.Option(help="The method: one that fairbloom methods lists, or a user-defined one as my_module:Mine."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="The model: one of the task's, one of torchvision's, as resnet18, or yours as my_module:Net."),
]
PartitionOption = Annotated[
    str | None, typer.Option(help="How the data is split among the clients: shards, dirichlet or iid, say.")
]
RoundsOption = Annotated[
    int | None, typer.Option("--rounds", click_type=OneValue("num-rounds"), help="The number of rounds of a run.")
]
FractionOption = Annotated[
    float | None,
    typer.Option(
        click_type=OneValue("fraction"),
        help="The share of the clients that train in a round; by default all of up to nine clients, and half of more.",
    ),
]
ClientsOption = Annotated[
    int | None,
    typer.Option(click_type=OneValue("clients"), help="The number of clients that the data is split into."),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        click_type=OneValue("seed"), help="Seed of the data split, initial model, client sampling and batch order."
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        help="How the clients are computed: auto takes what should be fastest here; loop computes one after the other, "
        "stacked many at once, workers several processes side by side, ray a Ray cluster. All give the same numbers, "
        "up to rounding; fairbloom tune measures them."
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="What the clients compute on: auto, cpu, cuda or mps.")]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        click_type=OneValue("memory"),
        help="Gigabytes that the clients' updates may take in memory; more lie in a temporary file. "
        "By default half of the machine's.",
    ),
]
FigureOption = Annotated[
    Path | None, typer.Option("--figure", metavar="PATH", help="Draw a figure into PATH.png and PATH.svg as well.")
]
SpreadOption = Annotated[
    Literal["interval", "std"],
    typer.Option(
        help="What tables of a comparison show of the seeds: interval prints differences to the baseline with their "
        "95 % intervals, std the standard deviation of each measure."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def settings_of(assignments: Iterable[str]) -> dict[str, Value]:
    """Return the settings of KEY=VALUE assignments.

    Raises
    ------
    FairbloomError
        When one is none, or a setting is given two values.
    """
    config: dict[str, Value] = {}
    for assignment in assignments:
        config = merge_settings(config, assigned([assignment]))
    return config

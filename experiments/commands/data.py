"""The command `fairbloom data`."""

import json
from typing import Annotated

import typer

from fairbloom.server.settings import Settings, check_used
from fairbloom.tasks import describe_data

from ..options import merge_settings
from .lists import show_data
from .options import ClientsOption, DataOption, JsonOption, PartitionOption, SetOption, setting_option, settings_of


def data(
    folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="The folder or file that the task reads its data from.")
    ] = None,
    task: Annotated[str, setting_option("task")] = "csv",
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split.")] = None,
    data_dir: DataOption = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Check a task's data: show what each client has, and report faults.

    The exit code is 1 if there are faults, or if clients share rows.
    """
    options = {"task": task, "data-dir": folder, "clients": clients, "partition": partition, "seed": seed}
    config = merge_settings(options, merge_settings({"data-dir": data_dir}, settings_of(settings)))
    check_used(config, ["fedavg"], task)
    chosen = Settings.of(config)
    described = describe_data(chosen)
    if as_json:
        print(json.dumps(described, indent=2))
    else:
        show_data(described)
    if any({"problem", "warning"} & row.keys() for row in described["clients"]):
        raise typer.Exit(1)

"""The command `fairbloom data`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors
from fairbloom.server.settings import Settings, check_used
from fairbloom.system.files import write_whole
from fairbloom.tasks import describe_data, infer_schema

from ..options import merge_settings
from .lists import show_data
from .options import (
    ClientsOption,
    DataOption,
    JsonOption,
    PartitionOption,
    SchemaOption,
    SetOption,
    setting_option,
    settings_of,
)


def data(
    folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="The folder or file that the task reads its data from.")
    ] = None,
    task: Annotated[str, setting_option("task")] = "csv",
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split.")] = None,
    data_dir: DataOption = None,
    schema: SchemaOption = None,
    write_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Infer a schema from the files, and write it into FILE.")
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Check a task's data: show what each client has, and report faults.

    The exit code is 1 if there are faults, or if clients share rows.
    """
    options = {
        "task": task,
        "data-dir": folder,
        "schema": schema,
        "clients": clients,
        "partition": partition,
        "seed": seed,
    }
    config = merge_settings(options, merge_settings({"data-dir": data_dir}, settings_of(settings)))
    check_used(config, ["fedavg"], task)
    chosen = Settings.of(config)
    if write_schema is not None:
        write_new_schema(write_schema, infer_schema(chosen))
        return
    described = describe_data(chosen)
    if as_json:
        print(json.dumps(described, indent=2))
    else:
        show_data(described)
    if any({"problem", "warning"} & row.keys() for row in described["clients"]):
        raise typer.Exit(1)


def write_new_schema(file: Path, text: str) -> None:
    """Write an inferred schema into a new file; raise RunFolderError where there is one already."""
    if file.exists():
        raise RunFolderError(f"{file} is there already: name another file, or delete it")
    with explain_write_errors(file.name, file.parent):
        write_whole(file, text.encode())
    print(f"{file} is written: read it, correct it, and pass it by --schema {file}")

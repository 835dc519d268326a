"""The command `fairbloom data`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.text import Text

from fairbloom.command import print_json
from fairbloom.errors import FairbloomError, join_names
from fairbloom.experiments.options import as_settings, merge_settings
from fairbloom.experiments.render.page import Cell, Table
from fairbloom.experiments.render.terminal import console, show_table
from fairbloom.logs import print_lines
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors
from fairbloom.server.run_folder.tables import format_rows
from fairbloom.server.settings import Settings, check_used
from fairbloom.system.files import write_whole
from fairbloom.tables.comparison import Profiles
from fairbloom.tables.findings import Finding
from fairbloom.tasks import Task, describe_data, infer_schema, load_task
from fairbloom.tasks.permit import permit_reading

from .settings_command import command


@command(folder="[DIR]")
@permit_reading()
def data(
    folder: str | None = None,
    *,
    task: str = "csv",
    clients: int | None = None,
    partition: str | None = None,
    seed: int | None = None,
    data_dir: str | None = None,
    schema: str | None = None,
    write_schema: Path | None = None,
    page: Path | None = None,
    table: Path | None = None,
    every_client: bool = False,
    settings: Mapping[str, Value] = {},
    as_json: bool = False,
) -> None:
    """Check a task's data: show what each client has, and report faults.

    The exit code is 1 if there are faults.

    Parameters
    ----------
    folder
        The folder or file that the task reads its data from.
    seed
        Seed of the split.
    write_schema
        Infer a schema from the files, and write it into FILE.
    page
        Write a page with a picture of each field in which clients stand out.
    table
        Write Table 1 as CSV: each column at each client, and in all.
    every_client
        Print rows for each client.
    """
    config = merge_settings(
        as_settings(
            {
                "task": task,
                "data_dir": folder,
                "schema": schema,
                "clients": clients,
                "partition": partition,
                "seed": seed,
            }
        ),
        merge_settings(as_settings({"data_dir": data_dir}), settings),
    )
    check_used(config, ["fedavg"], task)
    chosen = Settings.of(config)
    if write_schema is not None:
        if write_schema.exists():
            raise RunFolderError(
                f"{write_schema} is there already: name another file, or delete it"
            )
        with explain_write_errors(write_schema.name, write_schema.parent):
            write_whole(write_schema, infer_schema(chosen).encode())
        print_lines(
            f"{write_schema} is written: read it, correct it, and pass it by --schema"
            f" {write_schema}"
        )
        return
    if page is not None or table is not None:
        _write(load_task(chosen), page, table)
        return
    described = describe_data(chosen, every=every_client or as_json)
    if as_json:
        print_json(described)
    else:
        for name, rows in described.items():
            headings = list(dict.fromkeys(heading for row in rows for heading in row))
            cells = []
            for row in rows:
                cells.append([Cell.of(row.get(heading, "")) for heading in headings])
            if headings:
                show_table(Table(name, name, headings, cells))
        if chosen.data_dir:
            _print_names_to_change(load_task(chosen).clients)
    if any("problem" in row for row in described["clients"]):
        raise typer.Exit(1)


def _write(task: Task, page: Path | None, table: Path | None) -> None:
    """Write the page of the clients' profiles, and Table 1."""
    if task.compared is None:
        raise FairbloomError("--page and --table are of tables, which --task csv reads")
    if page is not None:
        write_page(page, *task.compared())
    if table is not None:
        rows = task.tabulate()
        keys = dict.fromkeys(key for row in rows for key in row)
        headings = ["all" if key is None else key for key in keys]
        cells: list[Sequence[str | int]] = [headings]
        for row in rows:
            cells.append([row.get(key, "") for key in keys])
        _write_file(table, format_rows(cells))


def write_page(
    page: Path, fields: Mapping[str, Profiles], findings: Sequence[Finding], advice: Sequence[str]
) -> None:
    """Write the page of profiles; `advice` has a sentence for each finding."""
    from fairbloom.experiments.pages.profiles import profiles_page  # late: charts take time
    from fairbloom.experiments.render.html import render

    _write_file(page, render(profiles_page(fields, findings, advice)))


def _write_file(path: Path, text: str) -> None:
    with explain_write_errors(path.name, path.parent):
        write_whole(path, text.encode())
    print_lines(f"{path} is written")


def _print_names_to_change(clients: Sequence[str]) -> None:
    """Print the names that no device of a federation can have."""
    from fairbloom.deploy.pki import NAME, NAME_RULE  # late: few need cryptography here

    refused = [name for name in clients if not NAME.fullmatch(name)]
    if refused:
        console.print(
            Text(f"fairbloom deploy enroll refuses {join_names(refused)}: {NAME_RULE}"),
            soft_wrap=True,
        )

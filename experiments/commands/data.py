"""The command `fairbloom data`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fairbloom.logs import escape_unprintable
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings, check_used
from fairbloom.tasks import describe_data, find_task, load_task

from ..options import merge_settings
from ..views.lists import show_data
from .options import ClientsOption, DataOption, JsonOption, PartitionOption, SetOption, setting_option, settings_of
from .show import draw


def data(
    folder: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="The folder or file that the task reads its data from.")
    ] = None,
    task: Annotated[str, setting_option("task")] = "csv",
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the split.")] = None,
    data_dir: DataOption = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Draw the number of examples of each client and class into PATH.png and PATH.svg."
        ),
    ] = None,
    leaves: Annotated[
        bool,
        typer.Option(
            "--leaves",
            help="Print everything that a deployed client with these data would send, except model parameters. On a "
            "device, DIR may be its client.toml.",
        ),
    ] = False,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Check a task's data: show what each client has, and report faults.

    The exit code is 1 if there are faults, or if clients share rows.
    """
    if leaves:
        show_leaving(task, data_dir or folder, settings_of(settings), as_json)
        return
    options = {"task": task, "data-dir": folder, "clients": clients, "partition": partition, "seed": seed}
    config = merge_settings(options, merge_settings({"data-dir": data_dir}, settings_of(settings)))
    check_used(config, ["fedavg"], task)
    chosen = Settings.of(config)
    described = describe_data(chosen)
    if as_json:
        print(json.dumps(described, indent=2))
    else:
        show_data(described)
    if figure is not None:
        from fairbloom.tasks.split import Split  # imported late: PyTorch takes seconds

        draw(Split.of(load_task(chosen)), figure, as_json)
    if any({"problem", "warning"} & row.keys() for row in described["clients"]):
        raise typer.Exit(1)


def show_leaving(task: str, place: str | None, settings: dict[str, Value], as_json: bool) -> None:
    """Print what clients with these data send in a run with these settings; exit with 1 where it is an error."""
    from fairbloom.client.limits import Limits  # imported late: Flower and PyTorch take seconds
    from fairbloom.deploy.device.client import ClientSettings
    from fairbloom.simulation.rehearsal import rehearse

    from ..views.leaving import as_json as leaving_json
    from ..views.leaving import sentences

    device = ClientSettings.of({}, Path(place)) if place and place.endswith(".toml") else None
    config = merge_settings({"task": task, "data-dir": device.data_dir if device else place}, settings)
    chosen = Settings.of(config)
    check_used(config, [chosen.method], task)
    allow = device.allow if device else [value for value in config.values() if isinstance(value, str)]
    limits = Limits.of(device.limits if device else {})
    sent = rehearse(chosen, name=device.name if device else "", allow=allow, limits=limits)
    found = leaving_json(sent)
    if not as_json:
        category = find_task(chosen.task).check_parameters(chosen.parameters).get("csv.smallest-category", 0)
        least = max(limits.rows, int(category))
        for client in dict.fromkeys(each.client for each in sent):
            said = sentences([each for each in sent if each.client == client], least)
            print(*map(escape_unprintable, (client, *(f"  {sentence}" for sentence in said))), "", sep="\n")
        print("The same as JSON, with the types and shapes of arrays in place of their numbers:")
    print(json.dumps(found, indent=2, ensure_ascii=False))
    if any("error" in each.content for each in sent):
        raise typer.Exit(1)

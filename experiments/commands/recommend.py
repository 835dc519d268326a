"""The command `fairbloom recommend`."""

import json
from typing import Annotated

import typer

from fairbloom.simulation.dispatch.processes import processors_here

from .. import api
from ..studies.wish import EXAMPLE, GRAMMAR
from .options import (
    ClientsOption,
    DataOption,
    DeviceOption,
    EngineOption,
    FractionOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    PartitionOption,
    RoundsOption,
    SetOption,
    TaskOption,
    settings_of,
)

EXAMPLE_COMMAND = f"fairbloom recommend --task digits --wish '{EXAMPLE}' --budget 10m"


def recommend(
    wish: Annotated[str, typer.Option(metavar="WISH", help=f"What the method is to be good at: {GRAMMAR}.")],
    task: TaskOption = None,
    data_dir: DataOption = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="How long it may take, as 10m, 90s or 1h30m: no run goes on after it.")
    ] = "10m",
    seed: Annotated[
        int,
        typer.Option(min=0, help="The first seed of the search; the gain is measured with seeds from 1000 later on."),
    ] = 0,
    model: ModelOption = None,
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    rounds: RoundsOption = None,
    fraction: FractionOption = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
    memory: MemoryOption = None,
    out: Annotated[str, typer.Option(help="The folder of the answer and of all runs.")] = "runs/recommendation",
    jobs: Annotated[
        int, typer.Option(min=1, help="The number of runs at a time; they share the processors.")
    ] = processors_here(),
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Find the method for a wish: which one, with which parameters, what it gains, what it costs, and who pays.

    Candidates are compared on validation examples, and the best is measured on the test examples of fresh seeds. The
    same command continues what was interrupted, and a higher --budget goes on from there.
    """
    found = api.recommend(
        task,
        wish=wish,
        budget=budget,
        data_dir=data_dir,
        seed=seed,
        model=model,
        clients=clients,
        partition=partition,
        rounds=rounds,
        fraction=fraction,
        engine=engine,
        device=device,
        memory=memory,
        out=out,
        jobs=jobs,
        settings=settings_of(settings),
    )
    if as_json:
        print(json.dumps(found.as_json, indent=2))
    else:
        found.show()

"""The command `fairbloom sweep`."""

from typing import Annotated, Unpack

import typer
from rich.markup import escape

from .. import api
from ..options import CommonOptions
from ..studies.objective import GRAMMAR
from .options import (
    DEFAULT_JOBS,
    GpusOption,
    JobsOption,
    JsonOption,
    PoolOption,
    SetOption,
    TaskOption,
    offer_common_options,
    settings_of,
    show_result,
)


@offer_common_options(method="data_dir", out="memory")
def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A TOML file that defines the sweep, instead of --method and --grid."),
    ] = None,
    task: TaskOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="One or more methods, separated by commas. Parameters may follow in parentheses: "
            "'fedfv,qfedavg(q=1)'. The default is FedAvg."
        ),
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a setting, or of a parameter of the method: alpha=0,0.1,0.5. Every combination is tried. "
            "May be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads it, nothing changes it)
    criterion: Annotated[
        str | None,
        typer.Option(help=f"Goal by which the best point is chosen on validation examples: {escape(GRAMMAR)}."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="A method to compare the chosen point with. It is tried with the grid values that apply to it."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="The number of seeds; by default 3, or as many as FILE says.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow.")] = 0,
    out: Annotated[
        str | None,
        typer.Option(
            help="The folder of the tables, the figure and the runs; by default runs/sweep, or runs/NAME of NAME.toml."
        ),
    ] = None,
    jobs: JobsOption = DEFAULT_JOBS,
    pool: PoolOption = "processes",
    gpus_per_run: GpusOption = 0.0,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
    **options: Unpack[CommonOptions],
) -> None:
    """Try combinations of settings, choose the best on validation examples, and test it.

    The same command continues an interrupted sweep. With more values, seeds or rounds it runs only what is missing.
    """
    found = api.sweep(
        file,
        task=task,
        method=method,
        grid=grid,
        criterion=criterion,
        baseline=baseline,
        seeds=seeds,
        seed=seed,
        out=out,
        jobs=jobs,
        pool=pool,
        gpus_per_run=gpus_per_run,
        settings=settings_of(settings),
        **options,
    )
    show_result(found, as_json)

"""The command `fairbloom compare`."""

from typing import Annotated, Unpack

import typer

from .. import api
from ..options import CommonOptions
from .options import (
    DEFAULT_JOBS,
    GpusOption,
    JobsOption,
    PoolOption,
    SetOption,
    TaskOption,
    offer_common_options,
    settings_of,
)


@offer_common_options(methods="data_dir", out="memory")
def compare(
    task: TaskOption = None,
    methods: Annotated[
        str,
        typer.Option(
            help="The methods, separated by commas. Parameters may follow in parentheses: "
            "'fedavg,qfedavg(q=1),my_module:Mine'."
        ),
    ] = api.METHODS,
    baseline: Annotated[
        str | None,
        typer.Option(help="The method that the others are compared with. The default is FedAvg, or the first method."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow.")] = 0,
    out: Annotated[str, typer.Option(help="The folder of the tables, the figure and the runs.")] = "runs/comparison",
    jobs: JobsOption = DEFAULT_JOBS,
    pool: PoolOption = "processes",
    gpus_per_run: GpusOption = 0.0,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    **options: Unpack[CommonOptions],
) -> None:
    """Train with several methods and seeds, and show which clients gain or lose.

    With the same seed, all methods have the same clients, draws and batches, so differences are paired.
    """
    api.compare(
        task,
        methods=methods,
        baseline=baseline,
        seeds=seeds,
        seed=seed,
        out=out,
        jobs=jobs,
        pool=pool,
        gpus_per_run=gpus_per_run,
        settings=settings_of(settings),
        **options,
    ).show()

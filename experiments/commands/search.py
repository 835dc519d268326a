"""The command `fairbloom search`."""

from typing import Annotated, Unpack

import typer

from .. import api
from ..options import CommonOptions
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


@offer_common_options(methods="data_dir", out="memory")
def search(
    task: TaskOption = None,
    methods: Annotated[
        str,
        typer.Option(
            help="The methods, separated by commas, or all, with parameters in parentheses: 'fedfv,qfedavg(q=1)'. "
            "A method without parameters tries the values that it declares."
        ),
    ] = api.METHODS,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a parameter of the methods: alpha=0,0.1,0.5. Every combination is tried. May be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads it, nothing changes it)
    criterion: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The measure to choose by: mean, worst, worst-10, client:NAME, group-gap:SCORE, 3*mean+worst or "
            "another of those that recipes name.",
        ),
    ] = "worst-10",
    mean_within: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0.0, help="How many points the mean over the clients may be below the baseline's."
        ),
    ] = None,
    baseline: Annotated[str, typer.Option(help="The method that the others are compared with.")] = "fedavg",
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="How long the search may take. Methods are tried seed by seed, and judged by the seeds that all have "
            "finished; the tests come on top.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="The number of seeds to choose by, and of fresh ones to test with.")
    ] = 3,
    seed: Annotated[
        int, typer.Option(min=0, help="The first seed; the others follow. Fresh ones begin 1000 later.")
    ] = 0,
    out: Annotated[str, typer.Option(help="The folder of the tables, the report and the runs.")] = "runs/search",
    jobs: JobsOption = DEFAULT_JOBS,
    pool: PoolOption = "processes",
    gpus_per_run: GpusOption = 0.0,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
    **options: Unpack[CommonOptions],
) -> None:
    """Try methods with several values of their parameters, and test the best of each with fresh seeds.

    They are judged on validation examples. The same command continues an interrupted search; with more values, seeds,
    rounds or time it runs only what is missing.
    """
    found = api.search(
        task,
        methods=methods,
        grid=grid,
        criterion=criterion,
        mean_within=mean_within,
        baseline=baseline,
        budget=budget,
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

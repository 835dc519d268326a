"""The command `fairbloom recommend`."""

from typing import Annotated, Unpack

import typer

from .. import api
from ..options import CommonOptions
from ..studies.objective import GRAMMAR
from .options import (
    DEFAULT_JOBS,
    JobsOption,
    JsonOption,
    SetOption,
    TaskOption,
    offer_common_options,
    settings_of,
    show_result,
)


@offer_common_options(budget="data_dir", out="memory")
def recommend(
    wish: Annotated[str, typer.Option(metavar="WISH", help=f"What the method is to be good at: {GRAMMAR}.")],
    task: TaskOption = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="How long it may take, as 10m, 90s or 1h30m: no run goes on after it.")
    ] = "10m",
    seed: Annotated[
        int,
        typer.Option(min=0, help="The first seed of the search; the gain is measured with seeds from 1000 later on."),
    ] = 0,
    out: Annotated[str, typer.Option(help="The folder of the answer and of all runs.")] = "runs/recommendation",
    jobs: JobsOption = DEFAULT_JOBS,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
    **options: Unpack[CommonOptions],
) -> None:
    """Search for the method that best meets a goal, within a time budget.

    Candidates are compared on validation examples, and the best is measured on the test examples of fresh seeds. The
    same command continues what was interrupted, and a higher --budget goes on from there.
    """
    found = api.recommend(
        task,
        wish=wish,
        budget=budget,
        seed=seed,
        out=out,
        jobs=jobs,
        settings=settings_of(settings),
        **options,
    )
    show_result(found, as_json)

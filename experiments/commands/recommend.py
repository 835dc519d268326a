"""The command `fairbloom recommend`."""

from typing import Annotated, Unpack

import typer
from rich.markup import escape

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
    wish: Annotated[
        str, typer.Option(metavar="WISH", help=f"The goal that the method should meet: {escape(GRAMMAR)}.")
    ],
    task: TaskOption = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit, such as 90s, 10m or 1h30m. No run continues after it.")
    ] = "10m",
    seed: Annotated[
        int,
        typer.Option(min=0, help="The first seed of the search. The gain is measured with other seeds, 1000 higher."),
    ] = 0,
    out: Annotated[str, typer.Option(help="The folder for the answer and all runs.")] = "runs/recommendation",
    jobs: JobsOption = DEFAULT_JOBS,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
    **options: Unpack[CommonOptions],
) -> None:
    """Search for the method that best meets a goal, within a time budget.

    Candidates are compared on validation examples, and the best is measured on the test examples of fresh seeds. The
    same command continues an interrupted search, also with a higher --budget.
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

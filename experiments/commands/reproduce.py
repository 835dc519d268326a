"""The command `fairbloom reproduce`."""

import json
from typing import Annotated

import typer

from fairbloom.protocol.settings import SettingsError

from .. import api
from ..recipe import load_shipped
from .lists import show_recipes
from .options import (
    DEFAULT_JOBS,
    DataOption,
    GpusOption,
    JobsOption,
    JsonOption,
    PoolOption,
    SetOption,
    settings_of,
    show_result,
)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The name of a recipe, as --list shows it, or the path of your TOML file."),
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the recipes without running anything.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="The number of seeds, from 0; by default the recipe's.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Try the recipe with one seed and a tenth of the rounds, at most 20. The numbers are not comparable.",
        ),
    ] = False,
    rows: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="Run only rows with this text in their name, and write no table or figure. May be repeated.",
        ),
    ] = [],  # noqa: B006 (typer reads it, nothing changes it)
    finished: Annotated[
        bool, typer.Option("--show", help="Print the table of the finished runs without running anything.")
    ] = False,
    data_dir: DataOption = None,
    out: Annotated[
        str | None,
        typer.Option(help="The folder of the table, the figure and the runs; by default runs/reproduce/NAME."),
    ] = None,
    jobs: JobsOption = DEFAULT_JOBS,
    pool: PoolOption = "processes",
    gpus_per_run: GpusOption = 0.0,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Repeat a published experiment, and print its numbers next to the published ones.

    The same command continues an interrupted study.
    """
    if as_list:
        recipes = list(load_shipped())
        if as_json:
            print(json.dumps([recipe.summary for recipe in recipes], indent=2))
        else:
            show_recipes(recipes)
        return
    if name is None:
        raise SettingsError("no recipe is named: fairbloom reproduce --list names them")
    done = api.reproduce(
        name,
        seeds=seeds,
        quick=quick,
        rows=rows,
        settings=settings_of(settings),
        data_dir=data_dir,
        out=out,
        jobs=jobs,
        pool=pool,
        gpus_per_run=gpus_per_run,
        run=not finished,
    )
    show_result(done, as_json)

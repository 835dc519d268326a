"""The command `fairbloom list`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..results.listing import find_runs
from .lists import show_runs
from .options import JsonOption


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The folder that contains the runs.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder with their settings, progress and scores."""
    runs = find_runs(folder)
    if as_json:
        print(json.dumps(runs, indent=2))
    else:
        show_runs(runs, folder)

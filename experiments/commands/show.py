"""The command `fairbloom show`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fairbloom.command import TrustOption
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.files import is_run_folder

from .. import api
from ..render.terminal import console
from ..results.listing import find_runs
from ..results.presentation import write_figure
from ..results.run import Run
from ..results.scored import scores_of
from ..study import NOUNS, Study, kind_of
from .lists import show_runs
from .options import FigureOption, JsonOption


def show(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The folder of a run or a study, or one that contains runs.")
    ] = Path("runs"),
    figure: FigureOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the results, progress and settings of a run or a study, or list the runs in a folder."""
    if folder.is_dir() and not kind_of(folder) and not is_run_folder(folder):
        if figure is not None:
            raise SettingsError(f"--figure: {folder} is no run and no study: name one of those in it")
        list_runs(folder, as_json)
        return
    if show_unfinished(folder, as_json):
        return
    found = api.load(folder, trust=trust)
    if as_json:
        print(json.dumps(describe(found) if isinstance(found, Run) else found.as_json, indent=2))
    else:
        found.show()
    if figure is not None:
        files = write_figure(found, figure.with_suffix("") if figure.suffix in (".png", ".svg") else figure)
        if not as_json:
            console.print(f"figure: {escape(', '.join(map(str, files)))}", soft_wrap=True)


def list_runs(folder: Path, as_json: bool) -> None:
    """Print the runs in a folder and below with their settings, progress and scores."""
    runs = find_runs(folder)
    if as_json:
        print(json.dumps(runs, indent=2))
    else:
        show_runs(runs, folder)


def describe(run: Run) -> dict[str, Any]:
    """Return what --json prints of a run."""
    about = {**run.summary, "settings": dict(run.settings), **run.absences()}
    about |= {"engine": run.engine}
    about["clients"] = {score.name: run.final(score) for score in run.scores}
    about["scores"] = [each.as_row() for each in scores_of(run)]
    if (groups := run.by_group()) is not None:
        about |= {"groups": groups.rows(), "gaps": groups.gap_rows()}
    return about


def show_unfinished(folder: Path, as_json: bool) -> bool:
    """Show how far the runs of a comparison are, and return whether there is one that is unfinished."""
    study = Study.read(folder) if kind_of(folder) == NOUNS["compare"] else None
    unfinished = study.unfinished(folder) if study else []
    if not study or not unfinished:
        return False
    runs = find_runs(folder)
    if as_json:
        print(json.dumps({"unfinished": [str(path.absolute()) for path in unfinished], "runs": runs}, indent=2))
    else:
        show_runs(runs, folder)
        whole = len(study.arms) * len(study.seeds)
        done = f"{whole - len(unfinished)} of {whole} runs of this comparison are finished"
        console.print(f"{done}: the same fairbloom compare continues", soft_wrap=True)
    return True

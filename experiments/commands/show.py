"""The command `fairbloom show`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.server.run_folder.errors import RunFolderError

from ..results.comparison import Plan, load_comparison
from ..results.ranks import name_tasks, ranks_of
from ..results.run import COMPARISON, SWEEP, load
from ..results.scored import scores_of
from ..studies.swept import load_sweep
from ..views.listing import find_runs
from ..views.lists import show_runs
from ..views.summary import details_of, summary_of
from ..views.terminal import console, show_page
from .options import FigureOption, JsonOption, SpreadOption, show_result


def show(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="The folder of a run, comparison or sweep; or those of several comparisons, to rank their methods.",
        ),
    ],
    figure: FigureOption = None,
    split: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Draw the number of examples of each client and class into PATH.png and PATH.svg."
        ),
    ] = None,
    spread: SpreadOption = "interval",
    as_json: JsonOption = False,
) -> None:
    """Show the results, progress and settings of a run, comparison or sweep.

    For several comparisons of the same methods on different tasks, it ranks the methods.
    """
    if len(folders) > 1:
        show_ranked(folders, figure, as_json)
        return
    (folder,) = folders
    for file, kind in ((COMPARISON, "comparison"), (SWEEP, "sweep")):
        if split is not None and (folder / file).exists():
            raise RunFolderError(f"{folder} holds a {kind}: draw the split of one of its runs, in {folder}/runs")
    if (folder / COMPARISON).exists():
        show_compared(folder, figure, spread, as_json)
        return
    if (folder / SWEEP).exists():
        show_swept(folder, figure, as_json)
        return
    chosen = load(folder)
    if as_json:
        about = {**chosen.summary, "settings": dict(chosen.settings), **chosen.absences()}
        about |= {"engine": chosen.engine, "taken_back": chosen.taken_back}
        about["clients"] = {score.name: chosen.final(score) for score in chosen.scores}
        about["scores"] = [each.as_row() for each in scores_of(chosen)]
        if (groups := chosen.by_group()) is not None:
            about |= {"groups": groups.rows(), "gaps": groups.gap_rows()}
        print(json.dumps(about, indent=2))
    else:
        show_page(details_of(chosen))
    if figure is not None:
        draw(chosen, figure, as_json)
    if split is not None:
        draw(chosen.split(), split, as_json)


def show_ranked(folders: Sequence[Path], figure: Path | None, as_json: bool) -> None:
    """Show how methods rank over several comparisons."""
    found = ranks_of(name_tasks([load_comparison(folder) for folder in folders]))
    if as_json:
        print(json.dumps(found.as_json, indent=2))
    else:
        show_page(summary_of(found))
    if figure is not None:
        draw(found, figure, as_json)


def show_compared(folder: Path, figure: Path | None, spread: str, as_json: bool) -> None:
    """Show a comparison, or how far its runs are."""
    plan = Plan.read(folder)
    unfinished = plan.unfinished(folder)
    if unfinished:
        runs = find_runs(folder)
        if as_json:
            print(json.dumps({"unfinished": [str(path.absolute()) for path in unfinished], "runs": runs}, indent=2))
        else:
            show_runs(runs, folder)
            done = f"{plan.count - len(unfinished)} of {plan.count} runs of this comparison are finished"
            console.print(f"{done}: the same fairbloom compare continues", soft_wrap=True)
        return
    comparison = load_comparison(folder)
    if as_json:
        print(json.dumps(comparison.as_json, indent=2))
    else:
        comparison.show(spread)
    if figure is not None:
        draw(comparison, figure, as_json)


def show_swept(folder: Path, figure: Path | None, as_json: bool) -> None:
    """Show a sweep, finished or not."""
    swept = load_sweep(folder)
    show_result(swept, as_json)
    if figure is not None:
        draw(swept, figure, as_json)


def draw(result: object, path: Path, as_json: bool) -> None:
    """Write the figure of a result, or of a split, and say where it lies, but for what is to be JSON alone."""
    from ..views.figures import write_figure  # imported late: it takes a second

    files = write_figure(result, path.with_suffix("") if path.suffix in (".png", ".svg") else path)
    if not as_json:
        console.print(f"figure: {escape(', '.join(map(str, files)))}", soft_wrap=True)

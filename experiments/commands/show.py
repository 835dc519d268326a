"""The command `fairbloom show`."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fairbloom.command import TrustOption
from fairbloom.server.run_folder.errors import RunFolderError

from ..results.comparison import Comparison, Plan, load_comparison
from ..results.plans import kind_of
from ..results.presentation import page_of, show_page
from ..results.recommendation import Recommendation, load_recommendation
from ..results.reproduction import Reproduction
from ..results.run import Run, load
from ..results.scored import scores_of
from ..results.sweep import Sweep
from ..studies.reproduce import load_reproduction
from ..studies.swept import load_sweep
from ..views.listing import find_runs
from ..views.lists import show_runs
from ..views.report.page import Charts
from ..views.report.sections import split_charts
from ..views.summary import details_of
from ..views.terminal import console
from .options import FigureOption, JsonOption, SpreadOption

Result = Run | Comparison | Sweep | Reproduction | Recommendation
"""What a folder may hold."""


def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of a run or a study.",
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
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Show the results, progress and settings of a run or a study."""
    if show_unfinished(folder, as_json):
        return
    found = load_result(folder, trust)
    if split is not None and not isinstance(found, Run):
        kind = type(found).__name__.lower()
        raise RunFolderError(f"{folder} holds a {kind}: draw the split of one of its runs, in {folder}/runs")
    if as_json:
        print(json.dumps(describe(found) if isinstance(found, Run) else found.as_json, indent=2))
    elif isinstance(found, Comparison):
        found.show(spread)
    else:
        show_page(details_of(found) if isinstance(found, Run) else page_of(found))
    if figure is not None:
        draw(page_of(found).make_figure(), figure, as_json)
    if split is not None and isinstance(found, Run):
        draw(split_charts(found.split()), split, as_json)


def load_result(folder: Path, trust: Collection[str] = ()) -> Result:
    """Return what a folder holds; a reproduction's recipe may import the modules in `trust`."""
    match kind_of(folder):
        case "comparison":
            return load_comparison(folder)
        case "sweep":
            return load_sweep(folder)
        case "reproduction":
            return load_reproduction(folder, trust)
        case "recommendation":
            return load_recommendation(folder)
    return load(folder)


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
    plan = Plan.read(folder) if kind_of(folder) == "comparison" else None
    unfinished = plan.unfinished(folder) if plan else []
    if not plan or not unfinished:
        return False
    runs = find_runs(folder)
    if as_json:
        print(json.dumps({"unfinished": [str(path.absolute()) for path in unfinished], "runs": runs}, indent=2))
    else:
        show_runs(runs, folder)
        done = f"{plan.count - len(unfinished)} of {plan.count} runs of this comparison are finished"
        console.print(f"{done}: the same fairbloom compare continues", soft_wrap=True)
    return True


def draw(charts: Charts, path: Path, as_json: bool) -> None:
    """Write charts as a figure, and say where it lies, but for what is to be JSON alone."""
    from ..views.figures import write_charts  # imported late: it takes a second

    files = write_charts(charts, path.with_suffix("") if path.suffix in (".png", ".svg") else path)
    if not as_json:
        console.print(f"figure: {escape(', '.join(map(str, files)))}", soft_wrap=True)

"""The command `fairbloom show`."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..render.terminal import console
from ..results.comparison import Comparison, Plan, load_comparison
from ..results.listing import find_runs
from ..results.plans import kind_of
from ..results.presentation import write_figure
from ..results.recommendation import Recommendation, load_recommendation
from ..results.reproduction import Reproduction
from ..results.run import Run, load
from ..results.scored import scores_of
from ..results.sweep import Sweep
from ..studies.reproduce import load_reproduction
from ..studies.swept import load_sweep
from .lists import show_runs
from .options import FigureOption, JsonOption

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
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Show the results, progress and settings of a run or a study."""
    if show_unfinished(folder, as_json):
        return
    found = load_result(folder, trust)
    if as_json:
        print(json.dumps(describe(found) if isinstance(found, Run) else found.as_json, indent=2))
    else:
        found.show()
    if figure is not None:
        files = write_figure(found, figure.with_suffix("") if figure.suffix in (".png", ".svg") else figure)
        if not as_json:
            console.print(f"figure: {escape(', '.join(map(str, files)))}", soft_wrap=True)


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

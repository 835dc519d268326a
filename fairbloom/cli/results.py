"""Commands on the content of a folder: `fairbloom show` and `report`."""

import json
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape

from fairbloom.experiments import api
from fairbloom.experiments.render.figures import check_figure
from fairbloom.experiments.render.terminal import console
from fairbloom.experiments.results.listing import find_runs
from fairbloom.experiments.results.presentation import write_figure, write_report
from fairbloom.experiments.results.run import REPORT, Run, scores_of
from fairbloom.experiments.study import find_study
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.files import is_run_folder

from .lists import show_runs
from .settings_command import command

Model = Literal["last", "best", "personal"]


@command(folder="[FOLDER]")
def show(
    folder: Path = Path("runs"),
    *,
    figure: Path | None = None,
    score: str = "",
    trust: bool = False,
    as_json: bool = False,
) -> None:
    """Show the results, progress and settings of a run or a study, or list the runs in a folder.

    Parameters
    ----------
    folder
        The folder of a run or a study, or one that contains runs.
    figure
        Also draw a figure into this file: PDF with embedded fonts, SVG or PNG by its ending.
    score
        Measure fairness of a run or comparison in this score of clients.csv.
    """
    if figure is not None:
        check_figure(figure)
    study = find_study(folder)
    unfinished = study.unfinished(folder) if study and study.kind == "compare" else []
    if unfinished or (folder.is_dir() and study is None and not is_run_folder(folder)):
        if figure is not None or score:
            raise SettingsError(
                f"{'--score' if score else '--figure'}: {folder} is neither a run nor a finished"
                " study: name one of those in it"
            )
        runs = find_runs(folder)
        missing = [str(path.absolute()) for path in unfinished]
        if as_json:
            print(json.dumps({"unfinished": missing, "runs": runs} if missing else runs, indent=2))
            return
        show_runs(runs, folder)
        if study:
            whole = len(study.arms) * len(study.seeds)
            say(
                f"{whole - len(unfinished)} of {whole} runs of this comparison are finished: the"
                " same fairbloom compare continues"
            )
        return
    found = api.load(folder, score=score, trust=trust)
    show_result(found, as_json)
    if figure is not None:
        write_figure(found, figure)
        say(f"figure: {figure}", as_json)


def show_result(result: Any, as_json: bool) -> None:
    """Print a result as tables, or as JSON."""
    if as_json:
        print(json.dumps(describe(result) if isinstance(result, Run) else result.as_json, indent=2))
    else:
        result.show()


def describe(run: Run) -> dict[str, Any]:
    """Return what --json prints of a run."""
    about = {
        **run.summary,
        "settings": dict(run.settings),
        **run.absences(),
        "engine": run.engine,
        "clients": {score.name: run.final(score) for score in run.scores},
        "scores": [scored.as_row() for scored in scores_of(run) if scored.values],
    }
    if (groups := run.by_group()) is not None:
        about |= {"groups": groups.rows(), "gaps": groups.gap_rows()}
    return about


@command(folder="FOLDER")
def report(folder: Path, *, out: Path | None = None, title: str = "", trust: bool = False) -> None:
    """Write a report with charts and tables as one HTML file.

    Studies write their report when they end.

    Parameters
    ----------
    folder
        The folder of a run or a study.
    out
        The file; by default report.html in the folder.
    title
        The title; by default the methods, and what they predict.
    """
    say(f"report: {write_report(api.load(folder, trust=trust), out or folder / REPORT, title)}")


def say(text: str, quiet: bool = False) -> None:
    """Print a line, in one piece also where it is longer than the terminal is wide."""
    if not quiet:
        console.print(escape(text), soft_wrap=True)

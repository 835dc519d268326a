"""Commands on the content of a folder: `fairbloom show` and `report`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape

from fairbloom.command import print_json
from fairbloom.experiments import api
from fairbloom.experiments.render.figures import check_figure
from fairbloom.experiments.render.page import Cell, Table
from fairbloom.experiments.render.terminal import console, show_table
from fairbloom.experiments.results.listing import ListedRun, list_runs
from fairbloom.experiments.results.presentation import write_figure, write_report
from fairbloom.experiments.results.run import REPORT, Run, scores_of
from fairbloom.experiments.study import find_study
from fairbloom.server.run_folder.files import is_run_folder

from .settings_command import command


@command(folder="FOLDER")
def show(
    folder: Path,
    *,
    figure: Path | None = None,
    score: str = "",
    trust: bool = False,
    as_json: bool = False,
) -> None:
    """Show the results, progress and settings of a run or a study; list the runs of a folder.

    Parameters
    ----------
    folder
        The folder of a run or a study. Of an unfinished comparison, and of another folder, the runs
        are listed.
    figure
        Also draw a figure into this file: PDF with embedded fonts, SVG or PNG by its ending.
    score
        Measure fairness of a run or comparison in this score of clients.csv.
    """
    if figure is not None:
        check_figure(figure)
    unfinished = ""
    study = find_study(folder)
    if study is not None and study.kind == "compare":
        unfinished = study.explain_unfinished(folder)
    is_no_result = study is None and not is_run_folder(folder)
    if figure is None and not score and (unfinished or is_no_result):
        listed = list_runs(folder)
        if listed:
            show_runs(listed, unfinished, as_json)
            return
    found = api.load(folder, score=score, trust=trust)
    show_result(found, as_json)
    if figure is not None:
        write_figure(found, figure)
        say(f"figure: {figure}", as_json)


def show_runs(listed: Sequence[ListedRun], note: str, as_json: bool) -> None:
    """Print a line for each run and a note, or JSON."""
    if as_json:
        print_json([asdict(run) for run in listed])
        return
    cells = []
    for run in listed:
        rounds = run.fault or f"{run.rounds_done} of {run.num_rounds}"
        cells.append([Cell(run.name), Cell(run.method), Cell(rounds), Cell(run.mean)])
    show_table(Table("runs", "", ("run", "method", "rounds", "mean"), cells, note))


def show_result(result: Any, as_json: bool) -> None:
    """Print a result as tables, or as JSON."""
    if as_json:
        described = describe(result) if isinstance(result, Run) else result.as_json
        print_json(described)
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
    groups = run.by_group()
    if groups is not None:
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

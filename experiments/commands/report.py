"""The command `fairbloom report`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..results.comparison import load_comparison
from ..results.ranks import name_tasks
from ..results.run import COMPARISON, REPORT, SWEEP, load
from ..studies.reproduce import REPRODUCTION, load_reproduction
from ..studies.swept import load_sweep
from ..views.report import FIGURES, write_report
from ..views.terminal import console


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="The folder of a run, comparison, reproduction or sweep, or the folders of several comparisons on "
            "different tasks, to rank their methods.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The file; by default {REPORT} in the folder, or here where there are several folders.",
        ),
    ] = None,
    svg: Annotated[
        bool,
        typer.Option("--svg", help=f"Also write each chart as SVG into the folder {FIGURES}/ next to the report."),
    ] = False,
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Write a report with charts and tables as one HTML file.

    Comparisons, reproductions and sweeps write their report when they end.
    """
    file = out or (folders[0] if len(folders) == 1 else Path()) / REPORT
    written, *figures = write_report(load_result(folders, trust), file, svg=svg)
    console.print(f"report: {escape(str(written))}", soft_wrap=True)
    if figures:
        console.print(f"figures: {len(figures)} in {escape(str(figures[0].parent))}", soft_wrap=True)


def load_result(folders: Sequence[Path], trust: Sequence[str] = ()) -> object:
    """Return what the folder holds; of several, the comparisons by the names of their tasks."""
    if len(folders) > 1:
        return name_tasks([load_comparison(folder) for folder in folders])
    (folder,) = folders
    if (folder / COMPARISON).exists():
        return load_comparison(folder)
    if (folder / SWEEP).exists():
        return load_sweep(folder)
    return load_reproduction(folder, trust) if (folder / REPRODUCTION).exists() else load(folder)

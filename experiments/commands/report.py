"""The command `fairbloom report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..results.comparison import load_comparison
from ..results.ranks import name_tasks
from ..results.run import REPORT
from ..studies.reproduce import ReproductionPlan, load_reproduction
from ..views.report import FIGURES, write_report
from ..views.terminal import console
from .show import load_result


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
    result: object = None
    if len(folders) > 1:
        result = name_tasks([load_comparison(folder) for folder in folders])
    elif (folders[0] / ReproductionPlan.file).exists():
        result = load_reproduction(folders[0], trust)
    written, *figures = write_report(result or load_result(folders[0]), file, svg=svg)
    console.print(f"report: {escape(str(written))}", soft_wrap=True)
    if figures:
        console.print(f"figures: {len(figures)} in {escape(str(figures[0].parent))}", soft_wrap=True)

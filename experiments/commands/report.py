"""The command `fairbloom report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..results.run import REPORT
from ..studies.reproduce import ReproductionPlan, load_reproduction
from ..views.report import write_report
from ..views.terminal import console
from .show import load_result


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison, reproduction or sweep.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The file; by default {REPORT} in the folder.")
    ] = None,
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Write a report with charts and tables as one HTML file.

    Comparisons, reproductions and sweeps write their report when they end.
    """
    reproduced = (folder / ReproductionPlan.file).exists()
    result = load_reproduction(folder, trust) if reproduced else load_result(folder)
    written = write_report(result, out or folder / REPORT)
    console.print(f"report: {escape(str(written))}", soft_wrap=True)

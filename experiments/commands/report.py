"""The command `fairbloom report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.command import TrustOption
from fairbloom.server.run_folder.errors import RunFolderError

from ..render.terminal import console
from ..results.presentation import write_report
from ..results.recommendation import Recommendation
from ..results.run import REPORT
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
    result = load_result(folder, trust)
    if isinstance(result, Recommendation):
        raise RunFolderError(f"{folder} holds a recommendation, which has no report: fairbloom show prints it")
    written = write_report(result, out or folder / REPORT)
    console.print(f"report: {escape(str(written))}", soft_wrap=True)

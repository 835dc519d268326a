"""The command `fairbloom report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from .. import api
from ..render.terminal import console
from ..results.presentation import write_report
from ..results.run import REPORT


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or a study.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The file; by default {REPORT} in the folder.")
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Write a report with charts and tables as one HTML file.

    Studies write their report when they end.
    """
    written = write_report(api.load(folder, trust=trust), out or folder / REPORT)
    console.print(f"report: {escape(str(written))}", soft_wrap=True)

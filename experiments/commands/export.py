"""The command `fairbloom export`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..render.terminal import console
from ..results.run import load
from .predict import ClientOption, ModelChoice


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The run folder, or on a device the folder that its client keeps of the run."
        ),
    ],
    client: ClientOption = "",
    model: ModelChoice = "last",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write. The default is a file in exports/ in the run folder."),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Export the trained model with its preprocessing as an ONNX file for other programs.

    The export is tried on a few hundred rows, and not written if its predictions differ from the model's.
    """
    file = load(run).export(client=client, model=model, out=out, trust=trust)
    console.print(f"exported: {escape(str(file))}", soft_wrap=True)

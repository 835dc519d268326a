"""The command `fairbloom export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from fairbloom.command import TrustOption

from ..results.run import load
from ..views.terminal import console
from .predict import ClientOption, ModelChoice


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The run folder, or on a device the folder that its client keeps of the run."
        ),
    ],
    to: Annotated[
        Literal["onnx", "torch", "safetensors", "mlflow", "card"],
        typer.Option(help="Format of the model. card writes only the model card."),
    ],
    client: ClientOption = "",
    model: ModelChoice = "last",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The folder to write. The default is a folder in exports/ in the run folder."
        ),
    ] = None,
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Export the trained model and its preprocessing for other programs, with a model card.

    The export is checked on a few hundred rows, and removed if its predictions differ from the model's.
    """
    folder = load(run).export(to, client=client, model=model, out=out, trust=trust)
    console.print(f"exported: {escape(str(folder))}", soft_wrap=True)

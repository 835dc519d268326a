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
        typer.Argument(metavar="RUN", help="The run folder; on a device, the folder that its client keeps of the run."),
    ],
    to: Annotated[
        Literal["onnx", "torch", "safetensors", "mlflow", "card"],
        typer.Option(help="The form of the model; card writes the model card alone."),
    ],
    client: ClientOption = "",
    model: ModelChoice = "last",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder to write; by default one in exports/ in the run folder."),
    ] = None,
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
) -> None:
    """Write the trained model with its preprocessing for other programs, and a model card.

    What was written is tried on a few hundred rows: where it predicts something else than the model, nothing is left.
    """
    folder = load(run).export(to, client=client, model=model, out=out, trust=trust)
    console.print(f"exported: {escape(str(folder))}", soft_wrap=True)

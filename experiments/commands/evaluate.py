"""The command `fairbloom evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fairbloom.command import TrustOption

from .. import api
from .options import DataOption, JsonOption, show_result


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a finished run, or the folder that a device keeps of it."),
    ],
    data_dir: DataOption = None,
    client: Annotated[str, typer.Option(help="The client to evaluate, if the folder has data of several.")] = "",
    model: Annotated[
        Literal["last", "best"],
        typer.Option("--model", help="The model after the last round, or the one with the best mean score."),
    ] = "last",
    personalise: Annotated[
        bool, typer.Option("--personalise", help="Also train and evaluate a personal model, as Ditto does.")
    ] = False,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="With --personalise: number of passes over the training examples (default: 10)."),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            min=0.0,
            help="With --personalise: how strongly the personal model is pulled to the run's model (default: that of "
            "the run, or 1).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the models and preprocessing there, for fairbloom predict."),
    ] = None,
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Evaluate a run's model on the data of a site that did not take part.

    Nothing of the data leaves this machine.
    """
    found = api.evaluate(
        run,
        data_dir=data_dir,
        client=client,
        model=model,
        personalise=personalise,
        epochs=epochs,
        strength=strength,
        out=out,
        trust=trust,
    )
    show_result(found, as_json)

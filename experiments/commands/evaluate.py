"""The command `fairbloom evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fairbloom.command import TrustOption

from .. import api
from .options import DataOption, JsonOption, show_result


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or the one that a device keeps of it.")
    ],
    data_dir: DataOption = None,
    client: Annotated[
        str, typer.Option(help="Which client's data to take, where the folder has those of several.")
    ] = "",
    model: Annotated[
        Literal["last", "best"],
        typer.Option("--model", help="The model after the last round, or the one with the best mean score."),
    ] = "last",
    personalise: Annotated[
        bool, typer.Option("--personalise", help="Train a personal model from it, as Ditto does, and measure that too.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="With --personalise: passes over the training examples; 10 by default.")
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            min=0.0,
            help="With --personalise: the strength of the pull to the run's model; by default the run's, or 1.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write there what fairbloom predict needs: the models and preprocessing."),
    ] = None,
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Measure a finished run's model on data of a site that took no part in the run.

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

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
    trust: TrustOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Evaluate a run's model on the data of a site that did not take part.

    Nothing of the data leaves this machine.
    """
    found = api.evaluate(run, data_dir=data_dir, client=client, model=model, trust=trust)
    show_result(found, as_json)

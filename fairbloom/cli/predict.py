"""The command `fairbloom predict`, which a device has without the needs of other commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from fairbloom.command import TrustOption
from fairbloom.experiments.render.terminal import console
from fairbloom.tables.schema import read_schema, with_files


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help=(
                "The run folder; on a device its state-dir, or its client.toml, to read new data"
                " in the device's own dialect."
            ),
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The new data: a CSV file with the columns of training."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The CSV file to write. It must not exist yet.")
    ],
    client: Annotated[
        str,
        typer.Option(
            help=(
                "The client to which the rows belong: its personal model, or its means and"
                " deviations, are used."
            )
        ),
    ] = "",
    model: Annotated[
        Literal["last", "best", "personal"],
        typer.Option(
            help=(
                "The model after the last round, the one with the best mean score, or the client's"
                " personal one."
            )
        ),
    ] = "last",
    split: Annotated[
        Literal["train", "test", "validation"] | None,
        typer.Option(
            help=(
                "Predict only these rows of a client's file: those that the run trained, tested or"
                " validated with."
            )
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="How the new tables are written, if they differ from the run's."
        ),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Predict for new data, and write a CSV file with predictions and class probabilities.

    The columns may be in any order. The target column may be missing.
    """
    # imported late, as PyTorch is with them
    from fairbloom.deploy.device.client import ClientSettings
    from fairbloom.prediction.predictor import check_new, load_predictor
    from fairbloom.tasks.permit import permit_reading

    check_new(out)
    files: Mapping[str, Any] = {}
    if run.suffix == ".toml":
        device = ClientSettings.of({}, run)
        files = device.files
        run = Path(device.state_dir)
    predictor = load_predictor(run, client=client, model=model, trust=trust)
    if schema is not None:
        predictor = predictor.reading_by(read_schema(str(schema)))
    elif files and predictor.preprocessing is not None:
        # as owner.toml says now: the model's own copy is of the run
        predictor = predictor.reading_by(with_files(predictor.preprocessing.schema, files))
    with permit_reading():
        predicted = predictor.predict_file(file, out, split or "")
    console.print(escape(f"{predictor.describe(predicted)}: {out}"), soft_wrap=True)

"""The tasks that read files of a user's own; nothing here imports PyTorch, since names are wanted without it."""

from fairbloom.protocol.parameters import Choices, Parameter, Range

from ..task import TaskInfo
from .folders import ENDINGS, PICTURES

FILES = (
    TaskInfo(
        "csv",
        summary="your tables (CSV, Parquet, Excel): a file for each client, or one with a column that names the client",
        source="the folder, or file, that --data-dir names",
        loader="fairbloom.tasks.files.tables:load",
        models=("logistic", "mlp"),
        settings=(
            Parameter("target", str, "", "Column to predict; by default the one called target, label or y"),
            Parameter("client", str, "", "Column of a single file that names each row's client"),
            Parameter(
                "kind",
                str,
                "auto",
                "What is predicted: a class, or a quantity by regression; auto decides by the target's values",
                Choices("auto", "classification", "regression"),
            ),
        ),
        reads=ENDINGS,
        infer="fairbloom.tasks.files.tables:infer",
        schema="fairbloom.tasks.schema:parse_schema",
    ),
    TaskInfo(
        "image-folder",
        summary="your images: CLIENT/CLASS/IMAGE.png, or .jpg",
        source="the folder that --data-dir names",
        loader="fairbloom.tasks.images:load",
        models=("cnn", "logistic", "mlp"),
        settings=(
            Parameter("size", int, 0, "Pixels each way to resize images to; 0 keeps them", Range("[0, inf)")),
            Parameter("grey", bool, False, "Whether images are read with one grey channel, not three coloured ones"),
            Parameter("classes", str, "", "All classes, as in 'cat,dog', so that a client may lack some"),
        ),
        reads=PICTURES,
        levels=3,  # CLIENT/CLASS/IMAGE
        infer="fairbloom.tasks.images:infer",
        schema="fairbloom.tasks.schema:parse_image_schema",
    ),
)
"""In the order in which they are listed."""

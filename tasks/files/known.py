"""The tasks that read files of a user's own; nothing here imports PyTorch, since names are wanted without it."""

from fairbloom.protocol.parameters import Choices, Parameter, Range

from ..task import TaskInfo
from .reading.formats import ENDINGS, PICTURES

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
            Parameter("classes", str, "", "All classes, as in 'no,yes', so that a client may lack some"),
            Parameter("categories", str, "", "Columns of numbers to treat as categories, as in 'sex,ward'"),
            Parameter("ignore", str, "", "Columns to leave out, as in 'id,name'"),
            Parameter(
                "missing",
                str,
                "error",
                "How to treat rows that lack a value: fail, drop them, or fill in the column's mean, or no category",
                Choices("error", "drop", "fill"),
            ),
            Parameter(
                "standardise",
                str,
                "client",
                "Whose mean and deviation standardise columns of numbers: each client's, or all clients' together",
                Choices("client", "together"),
            ),
            Parameter(
                "smallest-category",
                int,
                5,
                "Fewest training rows of a category that a deployed client reports by name; rarer ones become other",
                Range("[1, inf)"),
            ),
            Parameter("group", str, "", "Columns to report counts and scores of groups by, as in 'sex,age>=60'"),
            Parameter("positive", str, "", "Positive one of two classes, for rates in groups; by default the second"),
            Parameter(
                "decimal",
                str,
                ".",
                "Decimal mark of the numbers in texts, a point or a comma; in other formats numbers are no texts",
                Choices(".", ","),
            ),
            Parameter("commas", str, "", "Files with decimal commas, by names without endings, as in 'bonn,jena'"),
            Parameter("encoding", str, "utf-8", "Encoding of files not in UTF-8, as in cp1252, latin-1 or utf-16"),
        ),
        reads=ENDINGS,
        has_clients=True,
        agree="fairbloom.tasks.files.columns:agree",
    ),
    TaskInfo(
        "image-folder",
        summary="your images: CLIENT/CLASS/IMAGE.png, or .jpg",
        source="the folder that --data-dir names",
        loader="fairbloom.tasks.files.images:load",
        models=("cnn", "logistic", "mlp"),
        settings=(
            Parameter("size", int, 0, "Pixels each way to resize images to; 0 keeps them", Range("[0, inf)")),
            Parameter("grey", bool, False, "Whether images are read with one grey channel, not three coloured ones"),
            Parameter("classes", str, "", "All classes, as in 'cat,dog', so that a client may lack some"),
        ),
        reads=PICTURES,
        levels=3,  # CLIENT/CLASS/IMAGE
        has_clients=True,
        agree="fairbloom.tasks.files.shapes:agree_on_images",
    ),
)
"""In the order in which they are listed."""

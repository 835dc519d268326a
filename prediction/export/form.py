"""What every form of export has."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairbloom.tasks.preprocessing import Predictions

from .exportable import Exportable


@dataclass(frozen=True)
class Form:
    """A form in which a model leaves Fairbloom.

    `library` is the name on the Hugging Face hub; `write` fills an existing folder; `predict` predicts from such a
    folder by the form's own library; `listing` returns Python code that predicts with the files in the working
    directory.
    """

    name: str
    title: str
    library: str
    write: Callable[[Exportable, Path], None]
    predict: Callable[[Exportable, Path], Predictions]
    listing: Callable[[Exportable], str]

"""What every form of export has."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairbloom.tasks.preprocessing import Predictions

from .exportable import Exportable


@dataclass(frozen=True)
class Form:
    """A form in which a model leaves Fairbloom.

    Attributes
    ----------
    name
        What the command line calls it.
    title
        What it is, in a few words.
    library
        The library that reads it, as the Hugging Face hub calls it.
    write
        Writes a model into a folder that is there.
    predict
        Returns what the model in such a folder predicts for the rows it is tried on, by the form's own library.
    listing
        Returns lines of Python that predict with the files in the working directory.
    """

    name: str
    title: str
    library: str
    write: Callable[[Exportable, Path], None]
    predict: Callable[[Exportable, Path], Predictions]
    listing: Callable[[Exportable], str]

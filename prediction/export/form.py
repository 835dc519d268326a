"""What every form of export has."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairbloom.tasks.preprocessing import Predictions

from .subject import Subject


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
        Returns what the model in such a folder predicts for the subject's rows, by the library that it is written for.
    listing
        Returns lines of Python that predict with the files in the working directory.
    """

    name: str
    title: str
    library: str
    write: Callable[[Subject, Path], None]
    predict: Callable[[Subject, Path], Predictions]
    listing: Callable[[Subject], str]

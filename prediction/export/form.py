"""What every form of export has, and what goes wrong with one."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.prediction.predictor import Predictor
from fairbloom.prediction.rows import NewRows
from fairbloom.server.run_folder.files import PREPROCESSING
from fairbloom.tasks.preprocessing import TABLE, Predictions, Preprocessing

Raw = Any
"""What is predicted for: a data frame of a table's columns, or an array of inputs, first dimension the examples."""


class ExportError(FairbloomError):
    """A model cannot be exported in a form; the message says why, and what would do."""


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
        Writes a predictor's model into a folder that is there.
    predict
        Returns what the model in such a folder predicts, by the library that it is written for. The predictor that it
        was written from says how its module is built.
    listing
        Returns lines of Python that predict with the files in the working directory, without Fairbloom.
    """

    name: str
    title: str
    library: str
    write: Callable[[Predictor, Path], None]
    predict: Callable[[Predictor, Path, Raw], Predictions]
    listing: Callable[[Predictor], str]


def preprocessing_of(predictor: Predictor) -> Preprocessing:
    """Return how a predictor's raw data become inputs."""
    if predictor.preprocessing is None:
        raise ExportError(f"task {predictor.task_name} does not say what its inputs are")
    return predictor.preprocessing


def read_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing that lies beside an exported model."""
    preprocessing = PREPROCESSING.read(folder)
    if preprocessing is None:
        raise ExportError(f"{folder} has no {PREPROCESSING.name}")
    return preprocessing


def inputs_of(preprocessing: Preprocessing, raw: Raw) -> Tensor:
    """Return a model's inputs of raw data."""
    if preprocessing.form == TABLE:
        return preprocessing.inputs(NewRows.of_frame(raw).table(preprocessing))
    return torch.as_tensor(raw, dtype=torch.float32)


def needed(module: str, form: str, extra: str) -> Any:
    """Return a module that a form needs; raise ExportError with the command that installs it where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ExportError(
            f"--to {form} needs {module}, which is not installed: pip install 'fairbloom[{extra}]'"
        ) from error


@contextmanager
def explained(form: str, others: str) -> Iterator[None]:
    """Turn what PyTorch, or another library, raises while it converts a model into an ExportError with its cause.

    Parameters
    ----------
    form
        What is written.
    others
        The forms that do not need what has failed.
    """
    try:
        with quiet():
            yield
    except FairbloomError:
        raise
    except Exception as error:  # whatever a user's module, PyTorch or a runtime raises
        raise ExportError(
            f"this model cannot be exported to {form}: {_first_cause(error)}. Change the module, or export to {others}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Let nothing be logged or warned of: of PyTorch's own code, half of a graph, or of rows that are made up."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _first_cause(error: BaseException) -> str:
    """Return what an error has begun with, in a line."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'without a word'}"

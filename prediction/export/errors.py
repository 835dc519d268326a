"""What goes wrong when a model is exported, and what keeps it quiet."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, place_of
from fairbloom.server.run_folder.files import PREPROCESSING
from fairbloom.tasks.preprocessing import Preprocessing


class ExportError(FairbloomError):
    """A model cannot be exported in a form; the message says why, and what would do."""


def read_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing next to an exported model."""
    preprocessing = PREPROCESSING.read(folder)
    if preprocessing is None:
        raise ExportError(f"{folder} has no {PREPROCESSING.name}")
    return preprocessing


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
    """Turn a library's error into an ExportError; `others` names the forms that would still work."""
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
    """Let nothing be logged, warned of or printed: PyTorch prints half of a graph, and rows are made up."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _first_cause(error: BaseException) -> str:
    """Return what an error has begun with, in a line, and where in a user's module that is, if it is there."""
    place = place_of(error)
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
        place = place_of(error) or place
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0] if lines else 'without a word'}"
    return f"{said} ({place})" if place else said

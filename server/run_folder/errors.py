"""Errors of a run folder, each in one line with its remedy."""

import csv
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log


class RunFolderError(FairbloomError):
    """A run folder that cannot be used, or a file in it that cannot be read or written."""


@contextmanager
def name_app_option(choice: str, *, at_once: bool) -> Iterator[None]:
    """Make errors name the app's `choice` of another folder instead of --out.

    With `at_once` they are logged, too: Flower's simulation shows those of a ServerApp late, in a
    traceback of its own.
    """
    try:
        yield
    except FairbloomError as error:
        words = str(error).replace("(--out)", f"({choice})")
        if at_once:
            log.error("%s", words)
        if words == str(error):
            raise
        raise RunFolderError(words) from error


# What another content than the expected one raises.
CONTENT_ERRORS = (ValueError, LookupError, TypeError, AttributeError)


@contextmanager
def _explained(problem: str, remedy: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into a RunFolderError: the problem, the error, the remedy."""
    try:
        yield
    except kinds as error:
        if isinstance(error, RunFolderError):
            raise
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        why = getattr(error, "strerror", None) or said
        raise RunFolderError(f"{problem}: {why}. {remedy}") from error


def explain_write_errors(what: str, folder: Path) -> AbstractContextManager[None]:
    """Turn an OSError while `what` is written into a RunFolderError with a remedy."""
    return _explained(
        f"{what} cannot be written to {folder}",
        "What was written before is intact: make room there, or correct its permissions, and run"
        " the same command again; or choose another folder (--out)",
        OSError,
    )


def explain_read_errors(path: Path, remedy: str) -> AbstractContextManager[None]:
    """Turn any error about a file's content into a RunFolderError with the remedy."""
    return _explained(
        f"{path} cannot be read", remedy, OSError, *CONTENT_ERRORS, RecursionError, csv.Error
    )


def explain_other_state(folder: Path) -> AbstractContextManager[None]:
    """Turn errors from an intact checkpoint of another run into a RunFolderError."""
    return _explained(
        f"the last checkpoint in {folder} is whole, but not what this run needs",
        "Put back a copy, use the Fairbloom that wrote it, or choose another folder (--out)",
        *CONTENT_ERRORS,
        ArithmeticError,
    )


def explain_access_errors(folder: Path) -> AbstractContextManager[None]:
    """Turn an OSError while a folder is examined into a RunFolderError."""
    return _explained(f"{folder} cannot be used", "Choose another folder (--out)", OSError)


def check_place(folder: Path) -> None:
    """Raise RunFolderError if a path is too long for a folder or leads through a file."""
    with explain_access_errors(folder):
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"{nearest} is a file, not a folder: choose another folder (--out)")

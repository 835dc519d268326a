"""Errors of a run folder, each in one line with its remedy."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def explain_write_errors(what: str, folder: Path) -> Iterator[None]:
    """Turn an OSError while `what` is written into a RunFolderError with a remedy."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{what} cannot be written to {folder}: {error.strerror}. What was written before is"
            " intact: make room there, or correct its permissions, and run the same command again;"
            " or choose another folder (--out)"
        ) from error


@contextmanager
def explain_read_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn any error about a file's content into a RunFolderError with the remedy."""
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        csv.Error,
    ) as error:
        raise RunFolderError(f"{path} cannot be read: {_describe(error)}. {remedy}") from error


@contextmanager
def explain_other_state(folder: Path) -> Iterator[None]:
    """Turn errors from an intact checkpoint of another run into a RunFolderError."""
    try:
        yield
    except RunFolderError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RunFolderError(
            f"the last checkpoint in {folder} is whole, but not what this run needs:"
            f" {_describe(error)}. Put back a copy, use the Fairbloom that wrote it, or choose"
            " another folder (--out)"
        ) from error


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


@contextmanager
def explain_access_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError while a folder is examined into a RunFolderError."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be used: {error.strerror}. Choose another folder (--out)"
        ) from error


def check_place(folder: Path) -> None:
    """Raise RunFolderError if a path is too long for a folder or leads through a file."""
    with explain_access_errors(folder):
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"{nearest} is a file, not a folder: choose another folder (--out)")

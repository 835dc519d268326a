"""The files of a run folder: what a disk refuses is said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.system.files import write_whole


class RunFolderError(FairbloomError):
    """A run folder that cannot be used, or a file in it that cannot be read or written."""


def write_link(path: Path, to: Path) -> None:
    """Give a file another name, for as long as the first one stays what it is; where links cannot be had, a copy."""
    try:
        path.unlink(missing_ok=True)
        path.hardlink_to(to)
    except OSError:
        write_whole(path, to.read_bytes())


@contextmanager
def explain_write_errors(what: str, folder: Path) -> Iterator[None]:
    """Turn an OSError of writing `what` into a folder into a RunFolderError that says what to do."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{what} cannot be written to {folder}: {error.strerror}. What was written before is intact: make room "
            "there, or mend its permissions, and run the same command again; or choose another folder (--out)"
        ) from error


@contextmanager
def explain_access_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError of looking at a folder into a RunFolderError."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be used: {error.strerror}. Choose another folder (--out)") from error


def check_place(folder: Path) -> None:
    """Raise RunFolderError where no folder can be, because its name is too long or a part of its path is a file."""
    with explain_access_errors(folder):
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"{nearest} is a file, not a folder: choose another folder (--out)")

"""Which clients a folder of data has."""

from collections.abc import Iterable
from pathlib import Path

from ..catalogue import TASKS
from .reasons import DataError

ENDINGS = TASKS["csv"].reads
"""The endings of all tables that are read."""

UNREAD = (".feather", ".gz", ".ods", ".xls", ".xlsm", ".zip")
"""The endings of further tables: in a folder of tables they are refused, since a client must not be
overlooked."""

REMEDY = "save it as .csv, .parquet or .xlsx"

PICTURES = TASKS["image-folder"].reads
"""The endings of images."""


def files_in(place: str) -> dict[str, Path]:
    """Return the tables of a folder by client, sorted by name, or the one file that is named.

    None where place is "".

    A client has its file's name without the ending. Hidden files and Excel's lock files are passed
    over; a table in a format that is not read raises DataError.
    """
    if not place:
        return {}
    path = _there(place)
    found: dict[str, Path] = {}
    for file in [path] if path.is_file() else filter(Path.is_file, _shown(path)):
        if file.suffix.lower() in UNREAD:
            raise DataError(f"{file}: {file.suffix} files are not read: {REMEDY}", "other-format")
        if file.suffix.lower() not in ENDINGS and file != path:
            continue
        if (other := found.setdefault(file.stem, file)) != file:
            why = (
                f"{other.name} and {file.name} would both be client {file.stem}: rename one of them"
            )
            raise DataError(f"data-dir = {place!r}: {why}", "same-name")
    if not found:
        there = f"there is no {', '.join(ENDINGS)} file in it, but {_contents(path)}"
        raise DataError(f"data-dir = {place!r}: {there}", "no-file")
    return found


def folders_in(place: str) -> dict[str, Path]:
    """Return the folders below a folder by their names, in the order of names.

    Hidden ones are passed over.
    """
    if not place:
        return {}
    path = _there(place)
    found = {each.name: each for each in _shown(path) if each.is_dir()} if path.is_dir() else {}
    if not found:
        raise DataError(
            f"data-dir = {place!r}: there is no folder in it, but {_contents(path)}", "no-file"
        )
    return found


def _there(place: str) -> Path:
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(
            f"data-dir = {place!r}: there is no such folder or file on this machine", "no-place"
        )
    return path


def _shown(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "~$")))


def _contents(path: Path) -> str:
    names = [each.name for each in _shown(path)] if path.is_dir() else [path.name]
    return f"{', '.join(names[:5])}{' …' * (len(names) > 5)}" if names else "nothing at all"

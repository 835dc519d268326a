"""Which clients a folder of data has."""

from collections.abc import Collection, Iterable
from pathlib import Path

from .reading.formats import UNREAD, unread_error
from .reasons import DataError


def files_in(place: str, endings: Collection[str]) -> dict[str, Path]:
    """Return the files of a folder by client, sorted by name, or the one file that is named; none where place is "".

    A client has its file's name without the ending. Hidden files and Excel's lock files are passed over; a table in a
    format that is not read raises DataError.
    """
    if not place:
        return {}
    path = _there(place)
    if path.is_file():
        return {path.stem: path}
    found: dict[str, Path] = {}
    for file in filter(Path.is_file, _shown(path)):
        if file.suffix.lower() in UNREAD:
            raise unread_error(file)
        if file.suffix.lower() in endings:
            if file.stem in found:
                raise DataError(
                    f"data-dir = {place!r}: {found[file.stem].name} and {file.name} would both be client {file.stem}: "
                    "rename one of them",
                    "same-name",
                )
            found[file.stem] = file
    if not found:
        raise DataError(
            f"data-dir = {place!r}: there is no {one_of(endings)} file in it, but {_contents(path)}", "no-file"
        )
    return found


def folders_in(place: str) -> dict[str, Path]:
    """Return the folders below a folder by their names, in the order of names; hidden ones are passed over."""
    if not place:
        return {}
    path = _there(place)
    found = {each.name: each for each in _shown(path) if each.is_dir()} if path.is_dir() else {}
    if not found:
        raise DataError(f"data-dir = {place!r}: there is no folder in it, but {_contents(path)}", "no-file")
    return found


def one_of(endings: Collection[str]) -> str:
    """Return endings as in .csv, .tsv or .xlsx."""
    *first, last = endings
    return f"{', '.join(first)} or {last}" if first else last


def _there(place: str) -> Path:
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"data-dir = {place!r}: there is no such folder or file on this machine", "no-place")
    return path


def _shown(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "~$")))


def _contents(path: Path) -> str:
    names = [each.name for each in _shown(path)] if path.is_dir() else [path.name]
    return f"{', '.join(names[:5])}{' …' * (len(names) > 5)}" if names else "nothing at all"

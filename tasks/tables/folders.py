"""Find the clients of a folder of data."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

from fairbloom.text import text_if

from ..catalogue import TASKS
from .reasons import DataError

# The endings of all tables that are read.
ENDINGS = TASKS["csv"].reads

# Endings of tables in other formats: a folder with such a file is refused, because its client would
# be overlooked.
UNREAD = (".feather", ".gz", ".ods", ".xls", ".xlsm", ".zip")

REMEDY = "save it as .csv, .parquet or .xlsx"

# The endings of images.
PICTURES = TASKS["image-folder"].reads

# Files and folders that operating systems write, in lower case.
OF_SYSTEMS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin")


def files_in(place: str) -> dict[str, Path]:
    """Return the tables of a folder by client, sorted by name; `place` may also be a single file.

    Empty if `place` is "". A client has its file's name without the ending, in form NFC: macOS
    writes accents as characters of their own. Hidden files and Excel's lock files are skipped; a
    table in a format that is not read raises DataError.
    """
    if not place:
        return {}
    path = _existing_path(place)
    found: dict[str, Path] = {}
    for file in [path] if path.is_file() else filter(Path.is_file, _list_visible(path)):
        if file.suffix.lower() in UNREAD:
            raise DataError(f"{file}: {file.suffix} files are not read: {REMEDY}", "other-format")
        if file.suffix.lower() not in ENDINGS and file != path:
            continue
        client = normalize("NFC", file.stem)
        if (other := found.setdefault(client, file)) != file:
            raise DataError(
                f"data-dir = {place!r}: {other.name} and {file.name} would both be client"
                f" {client}: rename one of them",
                "same-name",
            )
    if not found:
        raise DataError(
            f"data-dir = {place!r}: there is no {', '.join(ENDINGS)} file in it, but"
            f" {_contents(path)}",
            "no-file",
        )
    return found


def folders_in(place: str) -> dict[str, Path]:
    """Return the subfolders of a folder by name, sorted; hidden ones are skipped."""
    if not place:
        return {}
    path = _existing_path(place)
    found: dict[str, Path] = {}
    if path.is_dir():
        for folder in filter(Path.is_dir, _list_visible(path)):
            name = normalize("NFC", folder.name)
            if found.setdefault(name, folder) != folder:
                raise DataError(
                    f"data-dir = {place!r}: two folders are called {name}, with the same letters in"
                    " two encodings: rename one of them",
                    "same-name",
                )
    if not found:
        raise DataError(
            f"data-dir = {place!r}: there is no folder in it, but {_contents(path)}", "no-file"
        )
    return found


def is_visible(name: str) -> bool:
    """Return whether an entry of a folder is neither hidden, nor a lock, nor a system's own."""
    return not name.startswith((".", "~$")) and name.lower() not in OF_SYSTEMS


def count_endings(files: Iterable[Path]) -> str:
    """Return the numbers of files by their ending: "7 .bmp, 1 without an ending"."""
    counts = Counter(file.suffix.lower() or "without an ending" for file in files)
    return ", ".join(f"{count} {ending}" for ending, count in counts.most_common())


def _existing_path(place: str) -> Path:
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(
            f"data-dir = {place!r}: there is no such folder or file on this machine", "no-place"
        )
    return path


def _list_visible(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.iterdir() if is_visible(path.name))


def _contents(path: Path) -> str:
    names = [each.name for each in _list_visible(path)] if path.is_dir() else [path.name]
    if not names:
        return "nothing at all"
    more = text_if(len(names) > 5, " …")
    return ", ".join(names[:5]) + more

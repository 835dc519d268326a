"""Find the clients of a folder of data."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import parent_process
from pathlib import Path
from unicodedata import normalize

from fairbloom.errors import join_names
from fairbloom.logs import log_once
from fairbloom.system.files import expand_home
from fairbloom.text import text_if

from .cells import ANY_NUMBER, fold_value
from .reasons import DataError

# Endings of files that hold others, or one that is compressed.
PACKED = (
    ".7z",
    ".bz2",
    ".gz",
    ".lz4",
    ".rar",
    ".tar",
    ".tbz2",
    ".tgz",
    ".txz",
    ".xz",
    ".zip",
    ".zst",
    ".zstd",
)

# Endings of tables in other formats: a folder with such a file is refused, because its client would
# be overlooked.
UNREAD = (
    *PACKED,
    ".accdb",
    ".arff",
    ".arrow",
    ".avro",
    ".dbf",
    ".dta",
    ".feather",
    ".fods",
    ".ftr",
    ".fwf",
    ".ipc",
    ".jsonl",
    ".mdb",
    ".ndjson",
    ".numbers",
    ".ods",
    ".orc",
    ".parq",
    ".por",
    ".pq",
    ".psv",
    ".rda",
    ".rdata",
    ".rds",
    ".sas7bdat",
    ".sav",
    ".ssv",
    ".tab",
    ".xls",
    ".xlsb",
    ".xlsm",
    ".xlt",
    ".xltm",
    ".xltx",
    ".xpt",
    ".zsav",
)

# The first bytes of tables under any name.
TABLE_STARTS = (
    b"PAR1",
    b"ARROW1",
    b"FEA1",
    b"ORC",
    b"Obj\x01",
    b"$FL2",
    b"$FL3",
    b"<stata_dta>",
    b"SQLite format 3",
    b"RDX2",
    b"RDX3",
    b"HEADER RECORD*******",
)

# The first bytes of tables that are read and are no texts.
BINARY = (b"PAR1", b"PK\x03\x04")

# The beginning of records in JSON, or of a workbook; and the name of old workbooks in their files.
TABLE_TEXT = re.compile(r"\s*\[\s*\{|PK\x03\x04.*xl/work", re.DOTALL)
OLD_OFFICE = b"\xd0\xcf\x11\xe0"
OLD_WORKBOOK = "Workbook".encode("utf-16-le")

# Bytes of a file that show whether it is a text of rows and columns.
SNIFFED = 2**16

# Lines that show whether a text is a table: a letter may have one comma in each of two lines.
FEWEST_LINES = 3
MAX_LINES = 50

OTHERS = "data-dir = %r has entries that are not read: %s"

REMEDY = "save it as .csv, .parquet or .xlsx"

# Endings of texts that are no tables, although each of their lines may have one comma.
TEXTS = (
    ".bib",
    ".css",
    ".htm",
    ".html",
    ".ipynb",
    ".js",
    ".log",
    ".md",
    ".py",
    ".r",
    ".rmd",
    ".rst",
    ".sh",
    ".sql",
    ".tex",
    ".toml",
    ".xml",
    ".yaml",
    ".yml",
)

# Files and folders that operating systems write, and the file of a privacy account, in lower case.
OF_SYSTEMS = (
    "fairbloom-account.toml",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "__macosx",
    "@eadir",
    "$recycle.bin",
    "#recycle",
    "icon\r",
    "lost+found",
    "system volume information",
)


def files_in(
    place: str, endings: Sequence[str], *, of_one: bool = False
) -> dict[str, tuple[Path, ...]]:
    """Return the tables of a folder by client, sorted by name; `place` may also be a single file.

    Empty if `place` is "". A table has one of `endings`, such as ".csv". Each file is a client, and
    so is each subfolder with tables, which are parts of one. If the folder is `of_one` client, its
    files are parts, too, and each text ends with a line. A client has its folder's name, or its
    file's without the ending, in form NFC: macOS writes accents as characters of their own. Hidden
    files, locks, files of operating systems and run folders are skipped. A table that is not read
    raises DataError; other entries are logged.
    """
    if not place:
        return {}
    path = _existing_path(place)
    entries = [path] if path.is_file() else _list_entries(path)
    others = _find_others(entries, path, endings)
    parts: dict[Path, tuple[Path, ...]] = {
        entry: (entry,) for entry in entries if entry not in others
    }
    if of_one:
        for entry in parts:
            _check_whole(entry)
    if of_one and len(parts) > 1:
        _log_entries("data-dir = %r has files that are read as one table: %s", place, [*parts])
        parts = {path.resolve(): tuple(parts)}
    for folder in filter(Path.is_dir, entries):
        inside = _list_entries(folder)
        if any(file.suffix.lower() in endings for file in inside):
            left_out = _find_others(inside, path, endings)
            parts[folder] = tuple(file for file in inside if file not in left_out)
            others += left_out
    if not parts:
        raise DataError(
            f"data-dir = {place!r}: there is no {', '.join(endings)} file in it, or in a folder in"
            f" it, but {_contents(path)}: name the folder that has a file, or a folder of files,"
            " for each client",
            "no-file",
        )
    found = _name_clients(
        place,
        {entry: entry.name if entry.is_dir() else entry.stem for entry in sorted(parts)},
        "",
    )
    _log_entries(OTHERS, place, [entry for entry in others if entry not in parts])
    return {client: parts[entry] for client, entry in found.items()}


def _check_whole(path: Path) -> None:
    """Raise DataError for a text that ends in the middle of a line, as while it is copied."""
    with path.open("rb") as file:
        start = file.read(SNIFFED)
        file.seek(max(0, path.stat().st_size - 4))
        end = file.read().rstrip(b"\0")
    if start and not start.startswith(BINARY) and not end.endswith((b"\n", b"\r")):
        raise DataError(
            f"{path} ends in the middle of a line, as a file does that is still being written: wait"
            " until it is whole, or end its last line",
            "torn",
        )


def place_of(place: str, client: str) -> str:
    """Return the file or subfolder of a folder that has the name of a client, or else `place`."""
    path = expand_home(place)
    named = [
        entry
        for entry in (_list_visible(path) if path.is_dir() else ())
        if normalize("NFC", entry.name if entry.is_dir() else entry.stem) == client
    ]
    return str(named[0]) if len(named) == 1 else place


def _find_others(entries: Sequence[Path], path: Path, endings: Sequence[str]) -> list[Path]:
    """Return the entries that are no tables, in a folder `path`, or below it.

    Raise DataError for a table that is not read. A file that `path` names is read as a text,
    whatever its ending.
    """
    others = [
        entry
        for entry in entries
        if entry != path and (entry.is_dir() or entry.suffix.lower() not in endings)
    ]
    for entry in entries:
        ending = entry.suffix.lower()
        is_text = entry in others and ending not in TEXTS and not entry.is_dir()
        if (ending in UNREAD and not entry.is_dir()) or (is_text and _is_table(entry)):
            kind = f"{entry.suffix} files" if ending else "files without an ending"
            raise DataError(
                f"{entry}: it holds a table, and {kind} are not read: {REMEDY}", "other-format"
            )
    return others


def folders_in(place: str) -> dict[str, Path]:
    """Return the subfolders of a folder by name, sorted.

    Hidden folders and run folders are skipped. A packed folder raises DataError; files are logged.
    """
    if not place:
        return {}
    path = _existing_path(place)
    entries = _list_entries(path) if path.is_dir() else []
    folders = {entry: entry.name for entry in entries if entry.is_dir()}
    files = [entry for entry in entries if entry not in folders]
    for file in files:
        if file.suffix.lower() in PACKED:
            raise DataError(f"{file}: {file.suffix} files are not read: unpack it", "other-format")
    if not folders:
        raise DataError(
            f"data-dir = {place!r}: it holds no folder, but {_contents(path)}", "no-file"
        )
    found = _name_clients(place, folders, "the folders ")
    _log_entries(OTHERS, place, files)
    return found


def _name_clients(place: str, names: Mapping[Path, str], what: str) -> dict[str, Path]:
    """Return entries of a folder by the clients' names; raise DataError if two have the same."""
    found: dict[str, Path] = {}
    folded: dict[str, Path] = {}
    for path, name in names.items():
        client = normalize("NFC", name)
        if (other := folded.setdefault(fold_value(client), path)) != path:
            raise DataError(
                f"data-dir = {place!r}: {what}{other.name} and {path.name} would both be client"
                f" {client}: rename one of them",
                "same-name",
            )
        found[client] = path
    return found


def is_visible(name: str) -> bool:
    """Return whether an entry of a folder is neither hidden, nor a lock, nor a system's own."""
    return not name.startswith((".", "~$")) and name.lower() not in OF_SYSTEMS


def count_endings(files: Iterable[Path]) -> str:
    """Return the numbers of files by their ending: "7 .bmp, 1 without an ending"."""
    counts = Counter(file.suffix.lower() or "without an ending" for file in files)
    return ", ".join(f"{count} {ending}" for ending, count in counts.most_common())


def _existing_path(place: str) -> Path:
    path = expand_home(place)
    if not path.exists():
        raise DataError(
            f"data-dir = {place!r}: this machine has no such folder or file", "no-place"
        )
    return path


def _list_visible(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.iterdir() if is_visible(path.name))


def _list_entries(folder: Path) -> list[Path]:
    """Return a folder's entries that may hold clients' data; raise DataError for a broken link."""
    entries = [path for path in _list_visible(folder) if not is_run_folder(path)]
    for entry in entries:
        if not entry.exists():
            raise DataError(
                f"{entry}: it is a link to {entry.readlink()}, which does not exist: correct it,"
                " or take it out",
                "unreadable",
            )
    return entries


def is_run_folder(path: Path) -> bool:
    """Return whether a folder is one of a run or a study, or holds such."""
    # Two entries each: a folder of pictures may have a study.json of its own.
    kinds = (("config.toml", "env.json"), ("study.json", "runs"))
    return path.is_dir() and any(
        (folder / one).exists() and (folder / other).exists()
        for folder in (path, *path.glob("*/"))
        for one, other in kinds
    )


def _log_entries(message: str, place: str, entries: Sequence[Path]) -> None:
    """Log once what is read, or not; a run lists its files several times."""
    if entries and parent_process() is None:  # a study's processes have one that reads for all
        log_once(message, place, join_names([entry.name for entry in entries]))


# Tables that are not read -------------------------------------------------------------------------


def _is_table(path: Path) -> bool:
    """Return whether a file begins as a table, or with lines of the same columns."""
    try:
        with path.open("rb") as file:
            start = file.read(SNIFFED)
    except OSError:
        return False  # it is named with other entries that are not read
    marked = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = start.decode("utf-16" if marked else "latin-1", errors="replace")
    if start.startswith(OLD_OFFICE):
        return OLD_WORKBOOK in path.read_bytes()
    if start.startswith(TABLE_STARTS) or TABLE_TEXT.match(text):
        return True
    lines = [line for line in text.splitlines() if line.strip()][:MAX_LINES]
    if len(start) == SNIFFED:
        lines = lines[:-1]  # it may be cut off
    counts = [[re.sub(r'"[^"]*"', "", line).count(mark) for line in lines] for mark in ",;\t|"]
    rows = [line.split() for line in lines[1:]]
    if all(any(re.fullmatch(ANY_NUMBER, cell) for cell in row) for row in rows):  # no sentences
        counts.append([len(row) - 1 for row in rows])
    return len(lines) >= FEWEST_LINES and any(each[0] > 0 and len({*each}) == 1 for each in counts)


def _contents(path: Path) -> str:
    names = [entry.name for entry in _list_visible(path)] if path.is_dir() else [path.name]
    if not names:
        return "nothing at all"
    return ", ".join(names[:5]) + text_if(len(names) > 5, " …")

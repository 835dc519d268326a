"""One file, read into columns, whatever its format."""

from collections.abc import Mapping
from pathlib import Path

from ..reasons import DataError
from .build import build_table
from .cells import RawTable
from .columnar import read_columnar
from .formats import COLUMNAR, SPREADSHEETS
from .progress import show_progress
from .sheets import read_sheet
from .table import ColumnHints, Table
from .text import read_text

MAX_TABLES = 128
"""The tables that are kept in memory."""

FileStamp = tuple[Path, int, int, ColumnHints]
"""What a table was read from: the file, the time of its last change and its size, and what was known of its columns."""

_tables: dict[FileStamp, Table] = {}


def read(path: Path, hints: ColumnHints) -> Table:
    """Return the columns of a file of any format, by its ending; it is read again only where it has changed."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    stamp = (path, status.st_mtime_ns, status.st_size, hints)
    table = _tables.pop(stamp, None)
    if table is None:
        table = build_table(read_raw(path, hints), hints)
    keep_tables({stamp: table})
    return table


def read_raw(path: Path, hints: ColumnHints) -> RawTable:
    """Return the cells of a file of any format, by its ending."""
    ending = path.suffix.lower()
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    with show_progress(path, size) as show:
        if ending in COLUMNAR:
            return read_columnar(path, hints, show)
        if ending in SPREADSHEETS:
            return read_sheet(path, hints, show)
        return read_text(path, hints, show)


def kept_tables() -> Mapping[FileStamp, Table]:
    """Return the tables that this process keeps, for a process that it starts."""
    return dict(_tables)


def keep_tables(tables: Mapping[FileStamp, Table]) -> None:
    """Keep tables, and the last MAX_TABLES of all, so that their files need not be read again."""
    _tables.update(tables)
    for oldest in list(_tables)[:-MAX_TABLES]:
        del _tables[oldest]

"""One file, read into columns, whatever its format."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..reasons import DataError
from .build import MAX_TEXT, build_table
from .cells import RawTable
from .formats import check_start
from .numbers import is_missing, parse_number
from .parquet import read_parquet
from .sheets import read_workbook
from .table import ColumnHints, Source, Table
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
    """Return the cells of a file of any format, by its ending, which its first bytes must fit."""
    check_start(path)
    readers = {".parquet": read_parquet, ".xlsx": read_workbook}
    raw = readers.get(path.suffix.lower(), read_text)(path, hints)
    check_names(raw.source, raw.header)
    return raw


def kept_tables() -> Mapping[FileStamp, Table]:
    """Return the tables that this process keeps, for a process that it starts."""
    return dict(_tables)


def keep_tables(tables: Mapping[FileStamp, Table]) -> None:
    """Keep tables, and the last MAX_TABLES of all, so that their files need not be read again."""
    _tables.update(tables)
    for oldest in list(_tables)[:-MAX_TABLES]:
        del _tables[oldest]


# The names of columns -------------------------------------------------------------------------------------------------


def check_names(source: Source, header: Sequence[str]) -> None:
    """Raise DataError when columns have no names, or the same."""
    if looks_like_data(header) and len(set(header)) < len(header):
        raise no_header_error(source, header)
    seen: dict[str, int] = {}
    for place, name in enumerate(header, start=1):
        if not name:
            raise DataError(
                f"{source.names_at}: column {place} has no name: give it one (pandas: to_csv(…, index=False) leaves "
                "the row numbers out)",
                "unnamed-column",
                column=place,
            )
        if len(name) > MAX_TEXT:
            raise DataError(
                f"{source.names_at}: the name of column {place} has {len(name)} characters: shorten it",
                "long-name",
                column=place,
                characters=len(name),
            )
        if name.lower() in seen:
            raise DataError(
                f"{source.names_at}: columns {seen[name.lower()]} and {place} are both called {name!r}: rename or "
                "remove one (upper and lower case are the same here)",
                "same-column",
                column=seen[name.lower()],
                other=place,
            )
        seen[name.lower()] = place


def looks_like_data(header: Sequence[str]) -> bool:
    """Return whether a first line holds values in place of names: at least half of them are numbers, or missing."""
    return 2 * sum(parse_number(name) is not None or is_missing(name) for name in header) >= len(header)


def no_header_error(source: Source, header: Sequence[str]) -> DataError:
    """Return the error of a file without a line of names."""
    return DataError(
        f"{source.names_at} holds values, {', '.join(header[:5])}{' …' * (len(header) > 5)}: the first line must name "
        "the columns, as in age,sex,target",
        "no-header",
    )

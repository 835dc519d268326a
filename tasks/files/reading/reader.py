"""One file, read into columns, whatever its format."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...schema import MAX_TEXT, Decimal, File, fold, normalise
from ..reasons import DataError
from .formats import check_start
from .numbers import parse_number
from .parquet import read_parquet
from .sheets import read_workbook
from .table import Source, Table, Values
from .text import read_text

MAX_TABLES = 128
"""The tables that are kept in memory."""

SAMPLE = 1000
"""The rows by which the decimal mark of a file is found."""

COMMA, POINT = r"^\s*[+-]?[0-9]*,[0-9]+\s*$", r"^\s*[+-]?[0-9]*\.[0-9]+([eE][+-]?[0-9]+)?\s*$"
"""Numbers with a decimal comma, and with a point, as pyarrow finds them."""

THOUSANDS = re.compile(r"\s*[+-]?[0-9]{1,3}(,[0-9]{3})+\s*")
"""What may be a number with a decimal comma, or with commas between thousands."""

FileStamp = tuple[Path, int, int, str]
"""What a table was read from: the file, the time of its last change, its size, and how it is said to be written."""

_tables: dict[FileStamp, Table] = {}


def read(path: Path, file: File) -> Table:
    """Return the columns of a file of any format, by its ending; it is read again only where it has changed."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    stamp = (path, status.st_mtime_ns, status.st_size, file.model_dump_json())
    table = _tables.pop(stamp, None)
    if table is None:
        table = _read(path, file)
    keep_tables({stamp: table})
    return table


def _read(path: Path, file: File) -> Table:
    check_start(path)
    readers = {".parquet": read_parquet, ".xlsx": read_workbook}
    raw = readers.get(path.suffix.lower(), read_text)(path, file)
    check_names(raw.source, raw.header)
    is_text = path.suffix.lower() not in readers
    decimal = file.decimalChar or (find_decimal(raw.columns) if is_text else ".")
    return Table(raw.source, dict(zip(raw.header, raw.columns, strict=True)), file, decimal)


def kept_tables() -> Mapping[FileStamp, Table]:
    """Return the tables that this process keeps, for a process that it starts."""
    return dict(_tables)


def keep_tables(tables: Mapping[FileStamp, Table]) -> None:
    """Keep tables, and the last MAX_TABLES of all, so that their files need not be read again."""
    _tables.update(tables)
    for oldest in list(_tables)[:-MAX_TABLES]:
        del _tables[oldest]


def find_decimal(columns: Sequence[Values | None]) -> Decimal:
    """Return a comma where the first rows have numbers with commas, which are no thousands, and none with points."""
    from pyarrow import compute  # imported late: a server reads no tables

    commas: list[str] = []
    for values in columns:
        if values is None:
            continue
        head = values.slice(0, SAMPLE)
        if compute.any(compute.match_substring_regex(head, POINT)).as_py():
            return "."
        commas += head.filter(compute.match_substring_regex(head, COMMA)).to_pylist()
    return "," if any(THOUSANDS.fullmatch(each) is None for each in commas) else "."


def check_names(source: Source, header: Sequence[str]) -> None:
    """Raise DataError when columns have no names, or the same."""
    if looks_like_data(header) and len(set(header)) < len(header):
        raise no_header_error(source, header)
    seen: dict[str, int] = {}
    for place, name in enumerate(header, start=1):
        if not normalise(name):
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
        if (folded := fold(name)) in seen:
            raise DataError(
                f"{source.names_at}: columns {seen[folded]} and {place} are both called {name!r}: rename or "
                "remove one (upper and lower case are the same here)",
                "same-column",
                column=seen[folded],
                other=place,
            )
        seen[folded] = place


def looks_like_data(header: Sequence[str]) -> bool:
    """Return whether a first line holds values in place of names: at least half of them are numbers, or empty."""
    return 2 * sum(parse_number(name) is not None or not name for name in header) >= len(header)


def no_header_error(source: Source, header: Sequence[str]) -> DataError:
    """Return the error of a file without a line of names."""
    return DataError(
        f"{source.names_at} holds values, {', '.join(header[:5])}{' …' * (len(header) > 5)}: the first line must name "
        "the columns, as in age,sex,target",
        "no-header",
    )

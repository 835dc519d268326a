"""CSV files as Python reads them: whatever is wrong with one, the error names file and line, and what to do."""

import csv
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

import numpy as np

from .cells import MAX_TEXT, CellsBuilder, CellsOfFile
from .formats import UTF_8, Dialect, find_dialect, format_of, marked_encoding
from .numbers import is_missing, parse_number
from .reasons import MOST_FAULTS, DataError, raise_faults
from .table import ColumnHints, Source

STATE = "say csv.encoding={}, or save it in UTF-8 (in Excel: CSV UTF-8)"
"""What to do about a text in another encoding, a likely one of which stands in the braces."""

BLOCK = 10_000
"""So many rows are held as texts at a time."""


def read_by_python(path: Path, hints: ColumnHints, show: Callable[[float], None]) -> CellsOfFile:
    """Return the cells of a CSV file.

    Parameters
    ----------
    path
        The file.
    hints
        What the settings of the run say about its columns.
    show
        Called with the share of the file that has been read.

    Raises
    ------
    DataError
        When it is no table with a line of names.
    """
    dialect = find_dialect(path, find_encoding(path, hints.encoding))
    size = max(path.stat().st_size, 1)
    with path.open("rb") as file, TextIOWrapper(file, dialect.encoding, newline="") as text:
        records = read_records(path, text, dialect)
        at, header = split_header(path, records)
        columns, lines = [CellsBuilder() for _ in header], []
        while block := list(islice(records, BLOCK)):
            for place, column in enumerate(columns):
                column.add([row[place].strip() for _, row in block])
            lines += [line for line, _ in block]
            show(file.tell() / size)
    source = Source(path, np.array(lines, np.int64), header=at)
    check_names(source, header)
    return CellsOfFile(source, header, [column.build() for column in columns])


def find_encoding(path: Path, given: str) -> str:
    """Return the encoding of a text: the one that its first bytes state, UTF-8 where it is that, or else the given one.

    Raises
    ------
    DataError
        When the file cannot be read, is no text, or is in none of these encodings.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    if ending := format_of(content):
        raise DataError(
            f"{path} is no CSV file, as it begins like {ending} files: if it is one, rename it to "
            f"{path.with_suffix(ending).name}",
            "no-csv",
        )
    tried = marked_encoding(content) or (UTF_8 if b"\0" not in content else given)
    if tried == "utf-8":
        raise DataError(
            f"{path}: it holds zero bytes: it is in UTF-16 without a mark, or no text: {STATE.format('utf-16-le')}",
            "utf-16",
        )
    try:
        content.decode(tried)
    except UnicodeDecodeError as error:
        if tried == UTF_8 and given != "utf-8" and not content.startswith(BOM_UTF8):
            return check_given(path, content, given)
        raise not_in(path, content, tried, error) from error
    return tried


def check_given(path: Path, content: bytes, given: str) -> str:
    """Return the encoding that csv.encoding names; raise DataError where a text is not in it either."""
    try:
        content.decode(given)
    except UnicodeDecodeError as error:
        raise not_in(path, content, given, error) from error
    return given


def not_in(path: Path, content: bytes, encoding: str, error: UnicodeDecodeError) -> DataError:
    """Return the error of a text that is not in an encoding."""
    line = content.count(b"\n", 0, error.start) + 1
    if encoding == UTF_8:
        what = f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8"
        return DataError(f"{path}: {what}: {STATE.format('cp1252')}", "not-utf-8", line=line)
    what = f"byte 0x{content[min(error.start, len(content) - 1)]:02x} in line {line} is neither UTF-8 nor {encoding}"
    return DataError(f"{path}: {what}: {STATE.format('cp1252')}", "other-encoding", line=line)


def read_records(path: Path, lines: Iterable[str], dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each row that is not blank; raise DataError where one has not as many as the first."""
    above = dialect.skipped
    reader = csv.reader(islice(lines, above, None), delimiter=dialect.delimiter, strict=True)
    width = header = 0
    faults: list[DataError] = []
    try:
        for row in reader:
            line = above + reader.line_num
            if len(row) != (width := width or len(row)):
                if row:
                    faults.append(row_length_error(path, line, len(row), header, width))
                    if len(faults) == MOST_FAULTS:
                        break
            elif row and not faults:
                header = header or line
                yield line, row
    except csv.Error as error:
        line = above + reader.line_num
        faults.append(
            DataError(
                f"{path}, line {line} cannot be read ({error}): look for a quotation mark that is not closed, or one "
                "too many; within quotes it is written twice",
                "quotes",
                line=line,
            )
        )
    raise_faults(faults)


def row_length_error(path: Path, line: int, cells: int, header: int, columns: int) -> DataError:
    """Return the error of a row that has more or fewer values than there are columns."""
    return DataError(
        f"{path}, line {line} has {cells} values, and line {header} names {columns} columns: add or remove values; a "
        "value that holds the separator, as a decimal comma may be, needs quotes around it",
        "row-length",
        line=line,
        cells=cells,
        header=header,
        columns=columns,
    )


def split_header(path: Path, records: Iterator[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    """Return line and names of the columns, from the first of the records; raise DataError where there is none."""
    line, first = next(records, (0, []))
    if not first:
        raise DataError(f"{path} is empty: its first line must name the columns", "empty")
    return line, [name.strip() for name in first]


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

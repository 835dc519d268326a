"""CSV files: pyarrow reads plain ones, and Python all others; an error names file and line, and what to do."""

import csv
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..reasons import MAX_FAULTS, DataError, raise_faults
from .build import MAX_TEXT
from .cells import RawTable, Values
from .formats import Dialect, find_dialect, format_of, marked_encoding
from .numbers import is_missing, parse_number
from .table import ColumnHints, Source

STATE = "say csv.encoding={}, or save it in UTF-8 (in Excel: CSV UTF-8)"
"""What to do about a text in another encoding, a likely one of which stands in the braces."""

ROWS_AT_ONCE = 10_000
"""The number of rows that are held as Python's texts at a time."""

BLOCK_BYTES = 4 * 2**20
"""The number of bytes that pyarrow parses at a time."""

LINE_END, CARRIAGE_RETURN, QUOTE = b'\n\r"'


def read_text(path: Path, hints: ColumnHints, show: Callable[[float], None]) -> RawTable:
    """Return the cells of a CSV file, read by pyarrow, which is many times faster, or else by Python."""
    content = read_content(path, hints.encoding)
    dialect = find_dialect(path, content)
    records = read_records(path, content, dialect)
    at, header = split_header(path, records)
    ends = content.count(b"\n") + (not content.endswith(b"\n"))
    lines, columns = np.arange(at + 1, ends + 1), None
    if is_plain(content, dialect.delimiter):
        columns = read_by_arrow(content, dialect.delimiter, at, len(header), lambda rows: show(rows / ends))
    if columns is None or len(columns[0]) != len(lines):  # a line is blank, or a value has several
        lines, columns = read_by_python(records, len(header), lambda line: show(line / max(line, ends)))
    source = Source(path, lines, header=at)
    check_names(source, header)
    return RawTable(source, header, columns)


# Its encoding ---------------------------------------------------------------------------------------------------------


def read_content(path: Path, given: str) -> bytes:
    """Return a text in UTF-8 without a mark; it is in the encoding of its mark, in UTF-8, or in the given one."""
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
    marked = marked_encoding(content)
    tried = marked or ("utf-8" if b"\0" not in content else given)
    if not marked and tried == "utf-8" and b"\0" in content:
        raise DataError(
            f"{path}: it holds zero bytes: it is in UTF-16 without a mark, or no text: {STATE.format('utf-16-le')}",
            "utf-16",
        )
    if tried == "utf-8" and content.isascii():
        return content
    try:
        text = content.decode(tried)
    except UnicodeDecodeError as error:
        if marked or tried != "utf-8" or given == "utf-8":
            raise not_in(path, content, tried, error) from error
        try:
            text = content.decode(given)
        except UnicodeDecodeError as neither:
            raise not_in(path, content, given, neither) from neither
    return text.encode(errors="replace")


def not_in(path: Path, content: bytes, encoding: str, error: UnicodeDecodeError) -> DataError:
    """Return the error of a text that is not in an encoding."""
    line = content.count(b"\n", 0, error.start) + 1
    what = f"byte 0x{content[min(error.start, len(content) - 1)]:02x} in line {line} is"
    if encoding.startswith("utf-8"):
        return DataError(f"{path}: {what} not UTF-8: {STATE.format('cp1252')}", "not-utf-8", line=line)
    return DataError(
        f"{path}: {what} neither UTF-8 nor {encoding}: {STATE.format('cp1252')}", "other-encoding", line=line
    )


# By pyarrow -----------------------------------------------------------------------------------------------------------


def is_plain(content: bytes, delimiter: str) -> bool:
    """Return whether pyarrow reads a text as Python does: lines end as usual, and quotation marks are around values."""
    if b"\0" in content or (b"\r" in content and content.count(b"\r") != content.count(b"\r\n")):
        return False
    return b'"' not in content or quotes_are_plain(content, ord(delimiter))


def quotes_are_plain(content: bytes, delimiter: int) -> bool:
    """Return whether quotation marks stand around whole values, without marks in them."""
    text = np.frombuffer(content, np.uint8)
    marks = np.flatnonzero(text == QUOTE)
    if len(marks) % 2:
        return False
    opening, closing = marks[::2], marks[1::2]
    before = np.where(opening == 0, LINE_END, text[opening - 1])
    after = np.where(closing == len(text) - 1, LINE_END, text[np.minimum(closing + 1, len(text) - 1)])
    whole = np.isin(before, (delimiter, LINE_END)) & np.isin(after, (delimiter, LINE_END, CARRIAGE_RETURN))
    return bool(whole.all())


def read_by_arrow(
    content: bytes, delimiter: str, header: int, width: int, show: Callable[[int], None]
) -> list[Values] | None:
    """Return the columns of a plain text below its header; None where Python has to say what is wrong with them."""
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

    names = list(map(str, range(width)))
    batches, rows = [], 0
    try:
        for batch in arrow_csv.open_csv(
            pa.BufferReader(content),
            arrow_csv.ReadOptions(column_names=names, skip_rows=header, block_size=BLOCK_BYTES),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in content),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[], strings_can_be_null=False
            ),
        ):
            batches.append(batch)
            rows += len(batch)
            show(rows)
    except pa.ArrowException:
        return None
    columns = pa.Table.from_batches(batches).columns if batches else []
    longest = max((compute.max(compute.binary_length(each)).as_py() or 0 for each in columns), default=0)
    return columns if columns and longest <= csv.field_size_limit() else None  # longer than Python takes


# By Python ------------------------------------------------------------------------------------------------------------


def read_by_python(
    records: Iterator[tuple[int, list[str]]], width: int, show: Callable[[int], None]
) -> tuple[NDArray[np.int64], list[Values]]:
    """Return the lines in which the rows below the header end, and the columns; raise DataError where one is wrong."""
    import pyarrow as pa

    lines: list[int] = []
    blocks: list[list[Values]] = [[] for _ in range(width)]
    while rows := list(islice(records, ROWS_AT_ONCE)):
        for place, block in enumerate(blocks):
            block.append(pa.array([row[place] for _, row in rows], pa.string()))
        lines += [line for line, _ in rows]
        show(lines[-1])
    return np.array(lines, np.int64), [pa.chunked_array(block, pa.string()) for block in blocks]


def read_records(path: Path, content: bytes, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each row that is not blank; raise DataError where one has not as many as the first."""
    above = dialect.skipped
    lines = TextIOWrapper(BytesIO(content), "utf-8", newline="")
    reader = csv.reader(islice(lines, above, None), delimiter=dialect.delimiter, strict=True)
    width = header = 0
    faults: list[DataError] = []
    try:
        for row in reader:
            line = above + reader.line_num
            if len(row) != (width := width or len(row)):
                if row:
                    faults.append(row_length_error(path, line, len(row), header, width))
                    if len(faults) == MAX_FAULTS:
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

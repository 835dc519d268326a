"""CSV files, which pyarrow reads; an error names file and line, and what to do."""

import codecs
import csv
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schema import File
from ..reasons import MAX_FAULTS, DataError, raise_faults
from .formats import REMEDY
from .table import RawTable, Source, Values

STATE = 'state encoding = "{}" under [files.{!r}] in the schema, or save it in UTF-8 (in Excel: CSV UTF-8)'
"""What to do about a text in another encoding: a likely one and the file's name stand in the braces."""

DELIMITERS = (",", ";", "\t", "|")

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""What texts in these encodings may begin with."""

MAX_ROW = 4 * 2**20
"""The bytes that pyarrow parses at a time, and thus a row may have."""

LINE_END, QUOTE = b'\n"'


def read_text(path: Path, file: File) -> RawTable:
    """Return the cells of a CSV file as texts."""
    content = read_content(path, file.encoding)
    end, lines = find_rows(content)
    if not len(lines):
        raise DataError(f"{path} is empty: its first line must name the columns", "empty")
    first = content[:end].decode().lstrip("\n")
    delimiter = file.delimiter or find_delimiter(path, first)
    check_quotes(path, content, delimiter)
    header = [name.strip() for name in next(csv.reader(StringIO(first, newline=""), delimiter=delimiter))]
    source = Source(path, lines[1:], header=int(lines[0]))
    return RawTable(source, header, read_columns(source, content, end + 1, delimiter, len(header)))


def read_content(path: Path, given: str) -> bytes:
    """Return a text in UTF-8 with lines that end in LF; it is in the encoding of its mark, in UTF-8, or as given."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    marked = next((name for mark, name in MARKS.items() if content.startswith(mark)), "")
    possible = [marked] if marked else [given] if b"\0" in content else ["utf-8", given]
    zeros = DataError(
        f"{path}: it holds zero bytes: it is in UTF-16 without a mark, or no text: "
        f"{STATE.format('utf-16-le', path.name)}",
        "utf-16",
    )
    if possible[0] != "utf-8" or not content.isascii():
        try:
            content = decode(path, content, possible).encode(errors="replace")
        except DataError as error:
            raise error if marked or b"\0" not in content else zeros from error
    if b"\0" in content:
        raise zeros
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in content else content


def decode(path: Path, content: bytes, encodings: Sequence[str]) -> str:
    """Return a text by the first of these encodings that it is in; raise DataError where it is in none."""
    for encoding in encodings:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            wrong = not_in(path, content, encoding, error)
    raise wrong


def not_in(path: Path, content: bytes, encoding: str, error: UnicodeDecodeError) -> DataError:
    """Return the error of a text that is not in an encoding."""
    line = content.count(b"\n", 0, error.start) + 1
    what = f"byte 0x{content[min(error.start, len(content) - 1)]:02x} in line {line} is"
    if encoding.startswith("utf-8"):
        return DataError(f"{path}: {what} not UTF-8: {STATE.format('cp1252', path.name)}", "not-utf-8", line=line)
    return DataError(
        f"{path}: {what} neither UTF-8 nor {encoding}: {STATE.format('cp1252', path.name)}", "other-encoding", line=line
    )


def find_rows(content: bytes) -> tuple[int, NDArray[np.int64]]:
    """Return where the first row ends that is not blank, and the line in which each such row ends, from 1.

    A line that ends within quotation marks does not end a row.
    """
    text = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(text == LINE_END)
    if not content.endswith(b"\n"):
        ends = np.append(ends, len(text))
    lines = np.arange(1, len(ends) + 1)
    if b'"' in content:
        outside = np.searchsorted(np.flatnonzero(text == QUOTE), ends) % 2 == 0
        ends, lines = ends[outside], lines[outside]
    filled = np.diff(ends, prepend=-1) > 1
    return int(ends[filled][0]) if filled.any() else 0, lines[filled]


def find_delimiter(path: Path, first: str) -> str:
    """Return what separates the values of a first row; raise DataError where nothing does."""
    if re.fullmatch(r'"?sep=."?[,;]*', first, re.IGNORECASE):
        raise DataError(
            f"{path}, line 1 is {first!r}, and must name the columns: delete this line, as the separator is found "
            f"without it, or {REMEDY}",
            "separator-line",
        )
    outside = re.sub(r'"[^"]*"', "", first)
    best = max(DELIMITERS, key=outside.count)
    if best not in outside:
        raise DataError(
            f"{path}, line 1 names one column only, {first.strip()[:60]!r}: columns are separated by comma, semicolon, "
            "tab or |",
            "one-column",
        )
    return best


def check_quotes(path: Path, content: bytes, delimiter: str) -> None:
    """Raise DataError where a quotation mark neither opens nor closes a value, nor is doubled within one."""
    if b'"' not in content:
        return
    text = np.frombuffer(content, np.uint8)
    marks = np.flatnonzero(text == QUOTE)
    opening, closing = marks[::2], marks[1::2]
    around = (ord(delimiter), LINE_END)
    opens = np.isin(text[opening - 1], around) | (opening == 0)
    opens[1:] |= opening[1:] == closing[: len(opening) - 1] + 1  # doubled
    closes = np.isin(text[np.minimum(closing + 1, len(text) - 1)], around) | (closing == len(text) - 1)
    closes[: len(opening) - 1] |= opening[1:] == closing[: len(opening) - 1] + 1
    wrong = [*opening[~opens][:1], *closing[~closes][:1], *(opening[-1:] if len(marks) % 2 else [])]
    if wrong:
        line = content.count(b"\n", 0, min(wrong)) + 1
        raise DataError(
            f"{path}, line {line} cannot be read: it has a quotation mark that is not closed, or one too many: a value "
            "that holds one needs quotation marks around it, within which it is written twice",
            "quotes",
            line=line,
        )


def read_columns(source: Source, content: bytes, start: int, delimiter: str, width: int) -> list[Values]:
    """Return the columns from a byte on; raise DataError where a row has more or fewer values than `width`."""
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import csv as arrow_csv

    names = list(map(str, range(width)))
    if not len(source.lines):
        return [pa.chunked_array([[]], pa.string()) for _ in names]
    faults: list[DataError] = []

    def note(row: Any) -> str:
        line = int(source.lines[row.number - 1])
        faults.append(row_length_error(source, line, row.actual_columns, width))
        return "skip" if len(faults) < MAX_FAULTS else "error"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(content).slice(start)),
            arrow_csv.ReadOptions(
                column_names=names, block_size=MAX_ROW, use_threads=False
            ),  # so that rows are counted
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in content, invalid_row_handler=note),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowException as error:
        raise_faults(faults)
        raise DataError(
            f"{source.path} cannot be read ({error}): a row may have {MAX_ROW // 2**20} MiB: shorten it, or leave its "
            "longest column out",
            "too-large",
        ) from error
    raise_faults(faults)
    if len(table) != len(source.lines):
        raise DataError(
            f"{source.path} cannot be read: it has {len(source.lines)} rows or {len(table)}, as one reads its "
            f"quotation marks: {REMEDY}",
            "unreadable",
        )
    columns: list[Values] = table.columns
    return columns


def row_length_error(source: Source, line: int, cells: int, columns: int) -> DataError:
    """Return the error of a row that has more or fewer values than there are columns."""
    return DataError(
        f"{source.path}, line {line} has {cells} values, and line {source.header} names {columns} columns: add or "
        "remove values; a value that holds the separator, as a decimal comma may be, needs quotes around it",
        "row-length",
        line=line,
        cells=cells,
        header=source.header,
        columns=columns,
    )

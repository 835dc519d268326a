"""CSV files as Python reads them: whatever is wrong with one, the error names file and line, and what to do."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .cells import MAX_TEXT, Cells, CellsBuilder, build_table
from .formats import find_delimiter, format_of, how_to_convert
from .numbers import is_missing, parse_number
from .reasons import DataError
from .table import ColumnHints, Table

SAVE = "save it in UTF-8 (in Excel: CSV UTF-8), or convert it, for example by iconv -f {} -t utf-8"
"""What to do about a file in another encoding, whose name as iconv has it stands in the braces."""

BLOCK = 10_000
"""So many rows are held as texts at a time."""


@dataclass(frozen=True, eq=False)
class CellsOfFile:
    """What a file holds before its columns are of numbers or of texts.

    Attributes
    ----------
    header
        The names of the columns.
    cells
        The cells of each.
    lines
        In which line of the file each row ends.
    """

    header: Sequence[str]
    cells: Sequence[Cells]
    lines: NDArray[np.int64]


def read_by_python(path: Path, hints: ColumnHints, show: Callable[[float], None]) -> Table:
    """Return the columns of a CSV file.

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
        When it is no table with a line of names, or one of its columns is neither of numbers nor of texts.
    """
    found = read_cells(path, show)
    return build_table(path, found.header, found.cells, found.lines, hints)


def read_cells(path: Path, show: Callable[[float], None]) -> CellsOfFile:
    """Return the cells of a CSV file; `show` is called with the share of it that has been read.

    Raises
    ------
    DataError
        When it is no table with a line of names.
    """
    check_encoding(path)
    size = max(path.stat().st_size, 1)
    with path.open("rb") as file, TextIOWrapper(file, "utf-8-sig", newline="") as text:
        records = read_records(path, text, find_delimiter(path))
        header = split_header(path, records)
        columns, lines = [CellsBuilder() for _ in header], []
        while block := list(islice(records, BLOCK)):
            for place, column in enumerate(columns):
                column.add([row[place].strip() for _, row in block])
            lines += [line for line, _ in block]
            show(file.tell() / size)
    check_names(path, header)
    return CellsOfFile(header, [column.build() for column in columns], np.array(lines, np.int64))


def check_encoding(path: Path) -> None:
    """Raise DataError where a file cannot be read, or is no text in UTF-8, with or without a mark at its beginning."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    if ending := format_of(content):
        raise DataError(
            f"{path} is no CSV file, as it begins like {ending} files: {how_to_convert(path, ending)}", "no-csv"
        )
    marked = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if marked or b"\0" in content:
        what = "it is in UTF-16" if marked else "it holds zero bytes: it is in UTF-16, or no text"
        raise DataError(f"{path}: {what}: {SAVE.format('utf-16')}", "utf-16")
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8"
        raise DataError(f"{path}: {what}: {SAVE.format('latin1')}", "not-utf-8", line=line) from error


def read_records(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each row that is not blank; raise DataError where one has not as many as the first."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    width = 0
    try:
        for row in reader:
            if len(row) != (width := width or len(row)):
                if row:
                    raise DataError(
                        f"{path}, line {reader.line_num} has {len(row)} values, and line 1 names {width} columns: add "
                        "or remove values; a value that holds the separator, as a decimal comma may be, needs quotes "
                        "around it",
                        "row-length",
                        line=reader.line_num,
                        cells=len(row),
                        columns=width,
                    )
            elif row:
                yield reader.line_num, row
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num} cannot be read ({error}): look for a quotation mark that is not closed, "
            "or one too many; within quotes it is written twice",
            "quotes",
            line=reader.line_num,
        ) from error


def split_header(path: Path, records: Iterator[tuple[int, list[str]]]) -> list[str]:
    """Return the names of the columns, from the first of the records; raise DataError where there is none."""
    _, first = next(records, (0, []))
    if not first:
        raise DataError(f"{path} is empty: its first line must name the columns", "empty")
    return [name.strip() for name in first]


def check_names(path: Path, header: Sequence[str]) -> None:
    """Raise DataError when columns have no names, or the same."""
    if looks_like_data(header) and len(set(header)) < len(header):
        raise no_header_error(path, header)
    seen: dict[str, int] = {}
    for place, name in enumerate(header, start=1):
        if not name:
            raise DataError(
                f"{path}, line 1: column {place} has no name: give it one (pandas: to_csv(…, index=False) leaves the "
                "row numbers out)",
                "unnamed-column",
                column=place,
            )
        if len(name) > MAX_TEXT:
            raise DataError(
                f"{path}, line 1: the name of column {place} has {len(name)} characters: shorten it",
                "long-name",
                column=place,
                characters=len(name),
            )
        if name.lower() in seen:
            raise DataError(
                f"{path}, line 1: columns {seen[name.lower()]} and {place} are both called {name!r}: rename or remove "
                "one (upper and lower case are the same here)",
                "same-column",
                column=seen[name.lower()],
                other=place,
            )
        seen[name.lower()] = place


def looks_like_data(header: Sequence[str]) -> bool:
    """Return whether a first line holds values in place of names: at least half of them are numbers, or missing."""
    return 2 * sum(parse_number(name) is not None or is_missing(name) for name in header) >= len(header)


def no_header_error(path: Path, header: Sequence[str]) -> DataError:
    """Return the error of a file without a line of names."""
    return DataError(
        f"{path}, line 1 holds values, {', '.join(header[:5])}{' …' * (len(header) > 5)}: the first line must name the "
        "columns, as in age,sex,target",
        "no-header",
    )

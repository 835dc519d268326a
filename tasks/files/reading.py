"""One CSV file, read into columns; every error says file, line, column, value and remedy."""

import csv
import io
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

DELIMITERS = (",", ";", "\t", "|")

MISSING = frozenset({"", "?", "na", "nan", "null", "n/a"})
"""What stands for a value that is missing, in any case of letters."""

MISSING_WORDS = "empty, ?, NA, NaN, null or N/A"

LONGEST = 200
"""Longer texts are no names of columns, categories or classes."""

LARGEST = 1e100
"""Numbers beyond cannot be squared and summed."""

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")

Rows = NDArray[np.intp]

NO_CODES: NDArray[np.int32] = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes
    ----------
    name
        As the first line has it.
    numbers
        Its values, NaN where they are missing; None where it is of texts.
    texts
        The different values of a column of texts, in the order of their first rows.
    codes
        Which of the texts each row has, -1 where it is missing; of a column of texts.
    blanks
        The different signs of a missing value.
    missing
        Which of the blanks each row has, counted from 1; 0 where there is a value.
    """

    name: str
    numbers: NDArray[np.float64] | None
    texts: tuple[str, ...]
    codes: NDArray[np.int32]
    blanks: tuple[str, ...]
    missing: NDArray[np.int8]

    def texts_in(self, rows: Rows) -> list[str]:
        """Return the different texts in these rows; a column of numbers has none."""
        if not self.texts:
            return []
        return [self.texts[code] for code in np.unique(self.codes[rows]) if code >= 0]


@dataclass(frozen=True, eq=False)
class Table:
    """A file of columns.

    Attributes
    ----------
    path
        The file.
    columns
        By name, in the order of the file.
    lines
        In which line of the file each row ends.
    """

    path: Path
    columns: dict[str, Column]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    def place(self, row: int, column: str) -> str:
        """Return where a value is, in words."""
        return f"{self.path}, line {self.lines[row]}, column {column!r}"


@dataclass(frozen=True)
class Reading:
    """What is known of a file's columns before it is read.

    Attributes
    ----------
    as_texts
        The columns that hold texts whatever their values look like; names are compared without case.
    ignored
        The columns that are left out.
    """

    as_texts: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()


def read(path: Path, reading: Reading) -> Table:
    """Return the columns of a CSV file; it is read again only where it has changed.

    Raises
    ------
    FairbloomError
        When it is no table with a line of names.
    """
    try:
        stamp = path.stat()
    except OSError as error:
        raise FairbloomError(f"{path} cannot be read: {error.strerror}") from error
    return _read(path, (stamp.st_mtime_ns, stamp.st_size), reading)


@lru_cache(maxsize=128)
def _read(path: Path, stamp: tuple[int, int], reading: Reading) -> Table:
    text = text_of(path)
    header, rows, lines = rows_of(path, text)
    check_names(path, header)
    unread = {name.lower() for name in reading.ignored}
    columns = {}
    for place, name in enumerate(header):
        if name.lower() not in unread:
            cells = [row[place].strip() for row in rows]
            columns[name] = column_of(path, name, cells, lines, as_text=name.lower() in reading.as_texts)
    return Table(path, columns, np.array(lines, np.int64))


def text_of(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a mark at its beginning."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FairbloomError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        what = "it is in UTF-16" if utf16 else f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8"
        raise FairbloomError(
            f"{path}: {what}: save it in UTF-8 (in Excel: CSV UTF-8), or convert it, by iconv -f latin1 -t utf-8 say"
        ) from error


def rows_of(path: Path, text: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the names of the columns, the rows, and the line in which each ends."""
    records = _records(path, text)
    _, first = next(records, (0, []))
    header = [name.strip() for name in first]
    if not header:
        raise FairbloomError(f"{path} is empty: its first line must name the columns")
    rows, lines, width = [], [], len(header)
    for line, row in records:
        if len(row) != width:
            raise FairbloomError(
                f"{path}, line {line} has {len(row)} values, and line 1 names {width} columns: add or take away what "
                "is amiss; a value that holds the separator needs quotes around it"
            )
        rows.append(row)
        lines.append(line)
    return header, rows, lines


def _records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line and values of each row that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(path, text), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise FairbloomError(
            f"{path}, line {reader.line_num} cannot be read ({error}): look for a quotation mark that is not closed, "
            "or one too many; within quotes it is written twice"
        ) from error


def delimiter_of(path: Path, text: str) -> str:
    """Return what separates the names in the first line; raise FairbloomError when nothing does."""
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    outside = re.sub(r'"[^"]*"', "", first)
    best = max(DELIMITERS, key=outside.count)
    if first and not outside.count(best):
        raise FairbloomError(
            f"{path}, line 1 names one column only, {first.strip()[:60]!r}: columns are separated by comma, semicolon, "
            "tab or |"
        )
    return best


def check_names(path: Path, header: Sequence[str]) -> None:
    """Raise FairbloomError when columns have no names, or the same."""
    if looks_like_data(header) and len(set(header)) < len(header):
        raise no_names(path, header)
    seen: dict[str, int] = {}
    for place, name in enumerate(header, start=1):
        if not name:
            raise FairbloomError(
                f"{path}, line 1: column {place} has no name: give it one (pandas: to_csv(…, index=False) leaves the "
                "row numbers out)"
            )
        if len(name) > LONGEST:
            raise FairbloomError(f"{path}, line 1: the name of column {place} has {len(name)} characters: shorten it")
        if name.lower() in seen:
            raise FairbloomError(
                f"{path}, line 1: columns {seen[name.lower()]} and {place} are both called {name!r}: rename or remove "
                "one (upper and lower case are the same here)"
            )
        seen[name.lower()] = place


def looks_like_data(header: Sequence[str]) -> bool:
    """Return whether a first line holds values in place of names: at least half of them are numbers, or missing."""
    return 2 * sum(number(name) is not None or is_missing(name) for name in header) >= len(header)


def no_names(path: Path, header: Sequence[str]) -> FairbloomError:
    """Return the error of a file without a line of names."""
    return FairbloomError(
        f"{path}, line 1 holds values, {', '.join(header[:5])}{' …' * (len(header) > 5)}: the first line must name the "
        "columns, as in age,sex,target"
    )


def column_of(path: Path, name: str, cells: list[str], lines: Sequence[int], *, as_text: bool) -> Column:
    """Return a column of numbers where all its values are numbers, else one of texts.

    Raises
    ------
    FairbloomError
        When most values are numbers and some are not, or have a decimal comma, or one is too large or too long.
    """
    numbering: dict[str, int] = {}
    places = np.fromiter((numbering.setdefault(cell, len(numbering)) for cell in cells), np.int32, len(cells))
    found = Found(f"{path}, line {{}}, column {name!r}", tuple(numbering), places, lines)
    blanks = tuple(cell for cell in found.different if is_missing(cell))
    of_blanks = {cell: k for k, cell in enumerate(blanks, start=1)}
    missing = found.spread([of_blanks.get(cell, 0) for cell in found.different], np.int8)
    numbers = [math.nan if is_missing(cell) else number(cell) for cell in found.different]
    if not as_text:
        check_numbers(name, found, numbers)
        if None not in numbers:
            return Column(name, found.spread(numbers, np.float64), (), NO_CODES, blanks, missing)
    check_length(name, found)
    texts: dict[str, int] = {}
    # 4.0 in one file and 4 in another one are the same category.
    short = (cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell for cell in found.different)
    codes = [-1 if is_missing(text) else texts.setdefault(text, len(texts)) for text in short]
    return Column(name, None, tuple(texts), found.spread(codes, np.int32), blanks, missing)


@dataclass(frozen=True, eq=False)
class Found:
    """The different cells of a column, in the order of their first rows, and which of them each row has."""

    words: str
    different: tuple[str, ...]
    places: NDArray[np.int32]
    lines: Sequence[int]

    def spread(self, values: Sequence[Any], kind: type[Any]) -> NDArray[Any]:
        """Return the value of each row, from those of the different cells."""
        return np.array(values, kind)[self.places] if values else np.zeros(0, kind)

    def place(self, cell: str) -> str:
        """Return where a cell is first, in words."""
        row = int(np.argmax(self.places == self.different.index(cell)))
        return self.words.format(self.lines[row])

    def cells(self, which: Collection[str]) -> int:
        """Return how many rows have one of these cells."""
        chosen = [k for k, cell in enumerate(self.different) if cell in which]
        return int(np.isin(self.places, chosen).sum())


def check_numbers(name: str, found: Found, numbers: Sequence[float | None]) -> None:
    """Raise FairbloomError when a column is of numbers for the most part, and something in it is none."""
    none = [cell for cell, value in zip(found.different, numbers, strict=True) if value is None]
    if not none:
        check_sizes(found, numbers)
        return
    present = found.cells({cell for cell in found.different if not is_missing(cell)})
    with_comma = [cell for cell in none if DECIMAL_COMMA.fullmatch(cell)]
    if with_comma and 2 * found.cells(set(with_comma)) >= present:
        raise FairbloomError(
            f"{found.place(with_comma[0])} holds {with_comma[0]!r}, a number with a comma: write decimal points, and "
            "nothing between thousands"
        )
    if 2 * found.cells(set(none)) < present:
        raise FairbloomError(
            f"{found.place(none[0])} holds {none[0]!r}, which is no number, and most of the column is numbers: mend "
            f"it, leave the cell empty if the value is missing, or take all of the column as categories by "
            f"csv.categories={name}"
        )


def check_sizes(found: Found, numbers: Sequence[float | None]) -> None:
    """Raise FairbloomError when a number is too large to be squared and summed."""
    for cell, value in zip(found.different, numbers, strict=True):
        if value is not None and abs(value) > LARGEST:
            raise FairbloomError(
                f"{found.place(cell)} holds {cell}: mend it, or leave it empty; numbers are at most {LARGEST:g}"
            )


def check_length(name: str, found: Found) -> None:
    """Raise FairbloomError when a text is longer than that of a category or class."""
    longest = max(found.different, key=len, default="")
    if len(longest) > LONGEST:
        raise FairbloomError(
            f"{found.place(longest)} holds a text of {len(longest)} characters, and a category has {LONGEST} at most: "
            f"leave the column out by csv.ignore={name}"
        )


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def number(cell: str) -> float | None:
    """Return the number that a cell holds, None where it holds none."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None

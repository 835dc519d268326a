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

from .headers import Label, doubtful_place, labels_of
from .numbers import DECIMAL_COMMA, WHOLE, is_missing, number
from .reasons import DataError

DELIMITERS = (",", ";", "\t", "|")

LONGEST = 200
"""Longer texts are no names of columns, categories or classes."""

LARGEST = 1e100
"""Numbers beyond cannot be squared and summed."""

SAVE = "save it in UTF-8 (in Excel: CSV UTF-8), or convert it, by iconv -f {} -t utf-8 say"
"""What to do about a file in another encoding, whose name as iconv has it stands in the braces."""

Rows = NDArray[np.intp]

NO_CODES: NDArray[np.int32] = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes
    ----------
    name
        As the first line has it.
    label
        What the server may be told of it: the name, or its place.
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
    label: Label
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
    doubtful
        The place, from 1, of a name that looks like a value, so that the first line may be a row; None for none.
    """

    path: Path
    columns: dict[str, Column]
    lines: NDArray[np.int64]
    doubtful: int | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    def place(self, row: int, column: str) -> str:
        """Return where a value is, in words."""
        return f"{self.path}, line {self.line(row)}, column {column!r}"

    def line(self, row: int) -> int:
        """Return in which line of the file a row ends."""
        return int(self.lines[row])


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

    @property
    def asked(self) -> frozenset[str]:
        """The names that the run itself uses, in small letters."""
        return self.as_texts | self.ignored


def read(path: Path, reading: Reading) -> Table:
    """Return the columns of a CSV file; it is read again only where it has changed.

    Raises
    ------
    DataError
        When it is no table with a line of names.
    """
    try:
        stamp = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    return _read(path, (stamp.st_mtime_ns, stamp.st_size), reading)


@lru_cache(maxsize=128)
def _read(path: Path, stamp: tuple[int, int], reading: Reading) -> Table:
    text = text_of(path)
    header, rows, lines = rows_of(path, text)
    check_names(path, header)
    cells = [[row[place].strip() for row in rows] for place in range(len(header))]
    doubtful = doubtful_place(header, cells, reading.asked)
    labels = labels_of(header, doubtful, reading.asked)
    columns = {
        name: column_of(path, name, labels[name], column, lines, as_text=name.lower() in reading.as_texts)
        for name, column in zip(header, cells, strict=True)
        if name.lower() not in reading.ignored
    }
    return Table(path, columns, np.array(lines, np.int64), doubtful)


def text_of(path: Path) -> str:
    """Return the text of a file in UTF-8, with or without a mark at its beginning."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
    marked = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    if marked or b"\0" in content:
        what = "it is in UTF-16" if marked else "it holds zero bytes: it is in UTF-16, or no text"
        raise DataError(f"{path}: {what}: {SAVE.format('utf-16')}", "utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8"
        raise DataError(f"{path}: {what}: {SAVE.format('latin1')}", "not-utf-8", line=line) from error


def rows_of(path: Path, text: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the names of the columns, the rows, and the line in which each ends."""
    records = _records(path, text)
    _, first = next(records, (0, []))
    header = [name.strip() for name in first]
    if not header:
        raise DataError(f"{path} is empty: its first line must name the columns", "empty")
    rows, lines, width = [], [], len(header)
    for line, row in records:
        if len(row) != width:
            raise DataError(
                f"{path}, line {line} has {len(row)} values, and line 1 names {width} columns: add or take away what "
                "is amiss; a value that holds the separator needs quotes around it",
                "row-length",
                line=line,
                cells=len(row),
                columns=width,
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
        raise DataError(
            f"{path}, line {reader.line_num} cannot be read ({error}): look for a quotation mark that is not closed, "
            "or one too many; within quotes it is written twice",
            "quotes",
            line=reader.line_num,
        ) from error


def delimiter_of(path: Path, text: str) -> str:
    """Return what separates the names in the first line; raise DataError when nothing does."""
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    outside = re.sub(r'"[^"]*"', "", first)
    best = max(DELIMITERS, key=outside.count)
    if first and not outside.count(best):
        raise DataError(
            f"{path}, line 1 names one column only, {first.strip()[:60]!r}: columns are separated by comma, semicolon, "
            "tab or |",
            "one-column",
        )
    return best


def check_names(path: Path, header: Sequence[str]) -> None:
    """Raise DataError when columns have no names, or the same."""
    if looks_like_data(header) and len(set(header)) < len(header):
        raise no_names(path, header)
    seen: dict[str, int] = {}
    for place, name in enumerate(header, start=1):
        if not name:
            raise DataError(
                f"{path}, line 1: column {place} has no name: give it one (pandas: to_csv(…, index=False) leaves the "
                "row numbers out)",
                "unnamed-column",
                column=place,
            )
        if len(name) > LONGEST:
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
    return 2 * sum(number(name) is not None or is_missing(name) for name in header) >= len(header)


def no_names(path: Path, header: Sequence[str]) -> DataError:
    """Return the error of a file without a line of names."""
    return DataError(
        f"{path}, line 1 holds values, {', '.join(header[:5])}{' …' * (len(header) > 5)}: the first line must name the "
        "columns, as in age,sex,target",
        "no-header",
    )


def column_of(path: Path, name: str, label: Label, cells: list[str], lines: Sequence[int], *, as_text: bool) -> Column:
    """Return a column of numbers where all its values are numbers, else one of texts.

    Raises
    ------
    DataError
        When most values are numbers and some are not, or have a decimal comma, or one is too large or too long.
    """
    numbering: dict[str, int] = {}
    places = np.fromiter((numbering.setdefault(cell, len(numbering)) for cell in cells), np.int32, len(cells))
    found = Found(f"{path}, line {{}}, column {name!r}", label, tuple(numbering), places, lines)
    blanks = tuple(cell for cell in found.different if is_missing(cell))
    of_blanks = {cell: k for k, cell in enumerate(blanks, start=1)}
    missing = found.spread([of_blanks.get(cell, 0) for cell in found.different], np.int8)
    numbers = [math.nan if is_missing(cell) else number(cell) for cell in found.different]
    if not as_text:
        check_numbers(name, found, numbers)
        if None not in numbers:
            return Column(name, label, found.spread(numbers, np.float64), (), NO_CODES, blanks, missing)
    check_length(name, found)
    texts: dict[str, int] = {}
    # 4.0 in one file and 4 in another one are the same category.
    short = (cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell for cell in found.different)
    codes = [-1 if is_missing(text) else texts.setdefault(text, len(texts)) for text in short]
    return Column(name, label, None, tuple(texts), found.spread(codes, np.int32), blanks, missing)


@dataclass(frozen=True, eq=False)
class Found:
    """The different cells of a column, in the order of their first rows, and which of them each row has."""

    words: str
    label: Label
    different: tuple[str, ...]
    places: NDArray[np.int32]
    lines: Sequence[int]

    def spread(self, values: Sequence[Any], kind: type[Any]) -> NDArray[Any]:
        """Return the value of each row, from those of the different cells."""
        return np.array(values, kind)[self.places] if values else np.zeros(0, kind)

    def line(self, cell: str) -> int:
        """Return in which line of the file a cell is first."""
        return self.lines[int(np.argmax(self.places == self.different.index(cell)))]

    def error(self, cell: str, wrong: str, why: str, **told: int) -> DataError:
        """Return the error of a cell: what is wrong with it is said of the place where it is first."""
        line = self.line(cell)
        return DataError(f"{self.words.format(line)} {wrong}", why, line=line, column=self.label, **told)

    def cells(self, which: Collection[str]) -> int:
        """Return how many rows have one of these cells."""
        chosen = [k for k, cell in enumerate(self.different) if cell in which]
        return int(np.isin(self.places, chosen).sum())


def check_numbers(name: str, found: Found, numbers: Sequence[float | None]) -> None:
    """Raise DataError when a column is of numbers for the most part, and something in it is none."""
    none = [cell for cell, value in zip(found.different, numbers, strict=True) if value is None]
    if not none:
        check_sizes(found, numbers)
        return
    present = found.cells({cell for cell in found.different if not is_missing(cell)})
    with_comma = [cell for cell in none if DECIMAL_COMMA.fullmatch(cell)]
    if with_comma and 2 * found.cells(set(with_comma)) >= present:
        wrong = f"holds {with_comma[0]!r}, a number with a comma: write decimal points, and nothing between thousands"
        raise found.error(with_comma[0], wrong, "decimal-comma")
    if 2 * found.cells(set(none)) < present:
        raise found.error(
            none[0],
            f"holds {none[0]!r}, which is no number, and most of the column is numbers: mend it, leave the cell empty "
            f"if the value is missing, or take all of the column as categories by csv.categories={name}",
            "no-number",
        )


def check_sizes(found: Found, numbers: Sequence[float | None]) -> None:
    """Raise DataError when a number is too large to be squared and summed."""
    for cell, value in zip(found.different, numbers, strict=True):
        if value is not None and abs(value) > LARGEST:
            wrong = f"holds {cell}: mend it, or leave it empty; numbers are at most {LARGEST:g}"
            raise found.error(cell, wrong, "large-number")


def check_length(name: str, found: Found) -> None:
    """Raise DataError when a text is longer than that of a category or class."""
    longest = max(found.different, key=len, default="")
    if len(longest) > LONGEST:
        raise found.error(
            longest,
            f"holds a text of {len(longest)} characters, and a category has {LONGEST} at most: leave the column out by "
            f"csv.ignore={name}",
            "long-text",
            characters=len(longest),
        )

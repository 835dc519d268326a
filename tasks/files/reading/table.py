"""A table that has been read from a file: its columns, and the places of its values."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..reasons import DataError, Position
from .headers import Label
from .numbers import Decimal, parse_number

Rows = NDArray[np.intp]

KINDS = NUMBERS, CATEGORIES, EMPTY = "numbers", "categories", "empty"
"""The kinds of columns; an empty one has no value in any row."""

NO_CODES: NDArray[np.int32] = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes
    ----------
    label
        The name as the server may know it: the name itself, or its place.
    numbers
        Its values, NaN where they are missing; None for texts.
    texts, codes
        The different texts in the order of their first rows, and which of them each row has; -1 where it is missing.
    blanks, missing
        The spellings of a missing value, and which of them each row has, from 1; 0 where there is a value.
    """

    name: str
    label: Label
    numbers: NDArray[np.float64] | None
    texts: tuple[str, ...]
    codes: NDArray[np.int32]
    blanks: tuple[str, ...]
    missing: NDArray[np.int8]

    @cached_property
    def kind(self) -> str:
        """Whether it is of numbers, of categories, or empty."""
        if (self.missing > 0).all():
            return EMPTY
        return CATEGORIES if self.numbers is None else NUMBERS

    def texts_in(self, rows: Rows) -> list[str]:
        """Return the different texts in these rows; a column of numbers has none."""
        counts = self.count_texts(rows)
        return [self.texts[code] for code in np.flatnonzero(counts)]

    def count_texts(self, rows: Rows) -> NDArray[np.int64]:
        """Return how many of these rows have each of the texts."""
        codes = self.codes[rows] if self.texts else NO_CODES
        return np.bincount(codes[codes >= 0] if self.blanks else codes, minlength=len(self.texts))

    def count_missing(self, rows: Rows) -> int:
        """Return how many of these rows have no value."""
        return int(np.count_nonzero(self.missing[rows])) if self.blanks else 0

    @cached_property
    def text_numbers(self) -> NDArray[np.float64]:
        """The number that each of the texts is, NaN where it is none."""
        return np.array([math.nan if (number := parse_number(text)) is None else number for text in self.texts])


@dataclass(frozen=True, eq=False)
class Source:
    """Where the rows of a table come from.

    `lines` has the line in which each row ends, or the row of a spreadsheet, from 1, or the number of the record;
    `unit` says which. `sheet` is "" for other formats. `header` is the line of names, 0 where names are not in a line.
    """

    path: Path
    lines: NDArray[np.int64]
    unit: Literal["line", "row"] = "line"
    sheet: str = ""
    header: int = 1

    @property
    def where(self) -> str:
        """The file, and the sheet of a workbook."""
        return f"{self.path}, sheet {self.sheet!r}" if self.sheet else str(self.path)

    @property
    def names_at(self) -> str:
        """Where the columns are named."""
        return f"{self.where}, {Position(self.unit, self.header)}" if self.header else self.where

    def position(self, row: int) -> Position:
        """Return in which line or row of the file a row is, as the server may know it."""
        return Position(self.unit, int(self.lines[row]))

    def place(self, row: int, column: str) -> str:
        """Return where a value is, as an error for the file's owner names it."""
        return f"{self.where}, {self.position(row)}, column {column!r}"


@dataclass(frozen=True, eq=False)
class Table:
    """A file of columns.

    `doubtful` is the place, from 1, of a name that looks like a value; `ignored` has the names left out, in small
    letters; `faults` say what is wrong with columns that could not be read.
    """

    source: Source
    columns: dict[str, Column]
    doubtful: int | None = None
    ignored: frozenset[str] = frozenset()
    faults: tuple[DataError, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.source.lines)

    @property
    def path(self) -> Path:
        """The file."""
        return self.source.path

    def place(self, row: int, column: str) -> str:
        """Return where a value is, as an error for the file's owner names it."""
        return self.source.place(row, column)

    def position(self, row: int) -> Position:
        """Return in which line or row of the file a row is, as the server may know it."""
        return self.source.position(row)


@dataclass(frozen=True)
class ColumnHints:
    """What a run's settings say about a file's columns before it is read; all names are in small letters.

    `as_texts` hold texts even if they look like numbers; `targets` are those of them that may be quantities; `grouped`
    are read even if they are ignored, and `reads_ignored` reads all that are numbers or texts.
    """

    as_texts: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    grouped: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    decimal: Decimal = "."
    encoding: str = "utf-8"
    reads_ignored: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names that the run itself uses, in small letters."""
        return self.as_texts | self.ignored | self.grouped

"""A table as it has been read from a file: the texts of its cells, and the places of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...schema import Decimal, File, fold
from ..reasons import Position

Rows = NDArray[np.intp]

Values = Any
"""A column as pyarrow holds it: a ChunkedArray of texts, or of numbers where the file's columns have types."""


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


@dataclass(frozen=True, eq=False)
class Table:
    """A file's columns by name; None for one that holds neither numbers nor texts.

    `file` says how it is written, `decimal` which decimal mark its numbers have.
    """

    source: Source
    columns: dict[str, Values | None]
    file: File
    decimal: Decimal

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.source.lines)

    @cached_property
    def by_name(self) -> Mapping[str, str]:
        """The columns' names by what they are compared by."""
        return {fold(name): name for name in self.columns}

    def find(self, name: str) -> Values | None:
        """Return a column, by its name in any case of letters; None where there is none that can be used."""
        there = self.by_name.get(fold(name))
        return None if there is None else self.columns[there]

    def take(self, rows: Rows) -> "Table":
        """Return some of the rows."""
        columns = {name: None if each is None else each.take(rows) for name, each in self.columns.items()}
        return replace(self, source=replace(self.source, lines=self.source.lines[rows]), columns=columns)


@dataclass(frozen=True, eq=False)
class RawTable:
    """A file's columns with their names, before the names are checked."""

    source: Source
    header: Sequence[str]
    columns: Sequence[Values | None]

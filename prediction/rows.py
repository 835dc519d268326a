"""New rows of a table, from a file or a data frame: checked against the columns that a model takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.logs import log
from fairbloom.tasks.files.reading.build import OTHER_MARK, encode_texts, find_blanks, parse_numbers
from fairbloom.tasks.files.reading.cells import MAX_NUMBER, Cells, to_cells
from fairbloom.tasks.files.reading.numbers import MISSING_WORDS, Decimal
from fairbloom.tasks.files.reading.reader import read_raw
from fairbloom.tasks.files.reading.table import Column, ColumnHints, Source, Table
from fairbloom.tasks.files.rows import TARGETS
from fairbloom.tasks.files.targets import MAX_COLUMNS_NAMED, join_names
from fairbloom.tasks.preprocessing import NUMBER, InputColumn, Preprocessing

if TYPE_CHECKING:
    import pandas


class UnreadableRowsError(FairbloomError):
    """New rows that cannot be predicted; the message names columns, or lines and columns."""


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows to predict, as texts by column.

    `source` is the name of the file in errors; `lines` are the numbers of rows in errors, which count `unit`s.
    """

    source: str
    cells: Mapping[str, Cells]
    lines: NDArray[np.int64]
    unit: str = "line"
    decimal: Decimal = "."

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    @classmethod
    def of_file(cls, path: Path, preprocessing: Preprocessing) -> "NewRows":
        """Return those of a file, written as those of the run; raise DataError when it is no table with names."""
        decimal, encoding = preprocessing.decimal, preprocessing.encoding
        raw = read_raw(path, ColumnHints(decimal=decimal, encoding=encoding))
        cells = {name: to_cells(values, decimal) for name, values in zip(raw.header, raw.columns, strict=True)}
        return cls(raw.source.where, cells, raw.source.lines, raw.source.unit, decimal)

    @classmethod
    def of_frame(cls, frame: "pandas.DataFrame") -> "NewRows":
        """Return those of a data frame, read as the file that its `to_csv` would write."""
        names = [str(name) for name in frame.columns]
        seen: set[str] = set()
        for name in names:
            if name.lower() in seen:
                raise UnreadableRowsError(f"the data frame has two columns called {name!r}: rename or remove one")
            seen.add(name.lower())
        cells = {name: _cells_of(frame.iloc[:, place]) for place, name in enumerate(names)}
        return cls("the data frame", cells, np.arange(len(frame)), "row")

    def texts(self, name: str) -> NDArray[Any]:
        """Return the cells of a column as they were read."""
        column = self.cells[name]
        return column.expand(column.different, object)

    def table(self, preprocessing: Preprocessing) -> Table:
        """Return the table that a preprocessing makes inputs of."""
        self._check_columns(preprocessing)
        if not len(self):
            raise UnreadableRowsError(f"{self.source} has no rows below the names of its columns: nothing to predict")
        problems: list[tuple[int, str]] = []
        columns = {each.name: self._column(each, problems) for each in preprocessing.columns}
        if problems:
            raise UnreadableRowsError(list_problems(self.source, problems, len(self), "rows"))
        return Table(Source(Path(self.source), self.lines), columns)

    def _check_columns(self, preprocessing: Preprocessing) -> None:
        inputs = [each.name for each in preprocessing.columns]
        others = [*preprocessing.ignored, *([preprocessing.target] if preprocessing.target else TARGETS)]
        known = {name.lower() for name in others}
        lacking = [name for name in inputs if name not in self.cells]
        added = [name for name in self.cells if name not in inputs and name.lower() not in known]
        parts = []
        if lacking:
            hint = did_you_mean(lacking[0], added)
            parts.append(f"it lacks {_quoted(lacking)}, which the model takes{hint and f' ({hint.strip()})'}")
        if added:
            hint = "" if lacking else did_you_mean(added[0], [*inputs, *others])
            parts.append(f"it has {_quoted(added)}, which no file of the run had{hint and f' ({hint.strip()})'}")
        if parts:
            place = f"{self.source}, line 1" if self.unit == "line" else self.source
            raise UnreadableRowsError(
                f"{place}: {', and '.join(parts)}: columns must be {join_names(inputs, MAX_COLUMNS_NAMED)}, in any "
                f"order; {join_names(others)} may be there, and {'are' if len(others) > 1 else 'is'} not looked at"
            )

    def _column(self, column: InputColumn, problems: list[tuple[int, str]]) -> Column:
        """Return a column as training reads it, and note the rows whose cells cannot be read."""
        cells = self.cells[column.name]
        blanks, missing = find_blanks(cells)
        read = Column(column.name, 0, None, (), np.zeros(0, np.int32), blanks, missing)
        wrong: dict[str, str] = {}
        if not column.fill:
            wrong |= dict.fromkeys(blanks, f"there is no value ({MISSING_WORDS}), and training filled none in")
        if column.kind == NUMBER:
            numbers = parse_numbers(cells, self.decimal)
            for cell, number in zip(cells.different, numbers, strict=True):
                if number is None:
                    wrong[cell] = "it is not a number, as the column is" + self._hint(cell)
                elif abs(number) > MAX_NUMBER:
                    wrong[cell] = f"numbers are at most {MAX_NUMBER:g}"
            values = cells.expand([math.nan if each is None else each for each in numbers], np.float64)
            read = replace(read, numbers=values)
        else:
            texts, codes = encode_texts(cells, self.decimal)
            read = replace(read, texts=texts, codes=codes)
            self._warn_of_unknown(column, read)
        problems += self._find(column.name, cells, wrong)
        return read

    def _hint(self, cell: str) -> str:
        """Return which decimal mark the run's files have, where a cell is a number with the other one."""
        mark = "commas" if self.decimal == "," else "points"
        return f", and the run's files have decimal {mark}" if OTHER_MARK[self.decimal].fullmatch(cell) else ""

    def _find(self, name: str, cells: Cells, wrong: Mapping[str, str]) -> list[tuple[int, str]]:
        """Return the rows that have one of these cells, and what is wrong with each."""
        if not wrong:
            return []
        places = [place for place, cell in enumerate(cells.different) if cell in wrong]
        rows = np.flatnonzero(np.isin(cells.places, places))
        found = []
        for row in rows.tolist():
            cell = cells.different[cells.places[row]]
            found.append((row, f"{self.unit} {self.lines[row]}, column {name!r} holds {_shorten(cell)}: {wrong[cell]}"))
        return found

    def _warn_of_unknown(self, column: InputColumn, read: Column) -> None:
        """Log that some texts are none of a column's categories, and what becomes of them."""
        known = frozenset(column.categories)
        unknown = [code for code, text in enumerate(read.texts) if text not in known]
        if not unknown:
            return
        rows = np.flatnonzero(np.isin(read.codes, unknown))
        names = join_names([_shorten(read.texts[code]) for code in unknown], 5)
        log.warning(
            "%s, column %r: %s %s known from training, in %d %s, first in %s %d: each counts as %s",
            self.source,
            column.name,
            names,
            "is not" if len(unknown) == 1 else "are not",
            len(rows),
            "row" if len(rows) == 1 else "rows",
            self.unit,
            self.lines[rows[0]],
            "'other'" if column.other else "none of the categories",
        )


def list_problems(source: str, problems: Sequence[tuple[int, str]], of: int, what: str) -> str:
    """Return an error's text from (place, problem) pairs: the first few, and how many of `of` examples follow."""
    ordered = sorted(problems)
    shown = [said for _, said in ordered[:20]]
    rest = [f"and {len(ordered) - len(shown):,} more"] if len(ordered) > len(shown) else []
    count = len({place for place, _ in ordered})
    them = "it" if count == 1 else "them"
    first = f"{source}: {count:,} of {of:,} {what} cannot be read: correct {them}, or leave {them} out:"
    return "\n  ".join([first, *shown, *rest])


def _cells_of(column: "pandas.Series[Any]") -> Cells:
    import pyarrow as pa  # imported late, as it is where files are read

    texts = list(map(str, column.astype(object).where(~column.isna(), "")))
    return to_cells(pa.chunked_array([texts], pa.string()))


def _quoted(names: Sequence[str]) -> str:
    return join_names(list(map(repr, names)), MAX_COLUMNS_NAMED)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")

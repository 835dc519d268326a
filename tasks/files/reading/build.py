"""From a file's cells to its columns; every error says file, line, column, value and remedy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..reasons import MAX_FAULTS, DataError, raise_faults
from .cells import MAX_NUMBER, Cells, Numbers, RawTable, Values, to_cells, to_numbers
from .headers import Label, doubtful_place, labels_of
from .numbers import DECIMAL_COMMA, DECIMAL_POINT, Decimal, canonical, is_missing, parse_number
from .table import NO_CODES, Column, ColumnHints, Source, Table

MAX_TEXT = 200
"""Longer texts are no names of columns, categories or classes."""

OTHER_MARK = {".": DECIMAL_COMMA, ",": DECIMAL_POINT}
"""How numbers with the other decimal mark look, by the run's mark."""


def build_table(raw: RawTable, hints: ColumnHints) -> Table:
    """Return the table of a file's cells, with what is wrong with columns that are neither of numbers nor of texts."""
    converted = [_convert(name, values, hints) for name, values in zip(raw.header, raw.columns, strict=True)]
    different = [found.different if isinstance(found, Cells) else () for found in converted]
    doubtful = doubtful_place(raw.header, different, hints.names)
    labels = labels_of(raw.header, doubtful, hints.names)
    columns = {}
    faults: list[DataError] = []
    for name, found in zip(raw.header, converted, strict=True):
        if name.lower() in hints.ignored:
            continue
        if isinstance(found, Numbers):
            columns[name] = Column(name, labels[name], found.numbers, (), NO_CODES, found.blanks, found.missing)
            continue
        try:
            columns[name] = build_column(ColumnPlace(raw.source, name, labels[name]), found, name.lower(), hints)
        except DataError as error:
            faults += [error, *error.others]
    ignored = hints.ignored.intersection(name.lower() for name in raw.header)
    return Table(raw.source, columns, doubtful, ignored, tuple(faults))


def _convert(name: str, values: Values, hints: ColumnHints) -> Cells | Numbers:
    """Return the numbers of a column, or else its texts; its name must not be overlooked where it is among them."""
    as_texts = name.lower() in hints.as_texts or is_missing(name) or parse_number(name) is not None
    numbers = None if as_texts else to_numbers(values, hints.decimal)
    return to_cells(values, hints.decimal) if numbers is None else numbers


@dataclass(frozen=True, eq=False)
class ColumnPlace:
    """What errors about a column say of it: where its rows are, its name, and what the server may know."""

    source: Source
    name: str
    label: Label

    def error(self, row: int, wrong: str, why: str, **values: int) -> DataError:
        """Return the error of a cell: what is wrong with it, and the key of its reason."""
        said = f"{self.source.place(row, self.name)} {wrong}"
        return DataError(said, why, position=self.source.position(row), column=self.label, **values)


def build_column(place: ColumnPlace, cells: Cells, name: str, hints: ColumnHints) -> Column:
    """Return a column of numbers if all its values are numbers, else of texts; `name` is in small letters."""
    decimal = hints.decimal
    blanks, missing = find_blanks(cells)
    if name not in hints.as_texts:
        numbers = parse_numbers(cells, decimal)
        check_numbers(place, cells, numbers, decimal)
        if None not in numbers:
            values = cells.expand(numbers, np.float64)
            return Column(place.name, place.label, values, (), NO_CODES, blanks, missing)
    check_length(place, cells)
    if name in hints.targets and decimal == ",":
        check_target(place, cells)
    texts, codes = encode_texts(cells, decimal)
    return Column(place.name, place.label, None, texts, codes, blanks, missing)


def find_blanks(cells: Cells) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    """Return the spellings of a missing value, and which of them each row has, counted from 1; else 0."""
    blanks = tuple(cell for cell in cells.different if is_missing(cell))
    of_blanks = {cell: k for k, cell in enumerate(blanks, start=1)}
    return blanks, cells.expand([of_blanks.get(cell, 0) for cell in cells.different], np.int8)


def parse_numbers(cells: Cells, decimal: Decimal = ".") -> list[float | None]:
    """Return the number that each of the different cells is: NaN where a value is missing, None where it is none."""
    return [math.nan if is_missing(cell) else parse_number(cell, decimal) for cell in cells.different]


def encode_texts(cells: Cells, decimal: Decimal = ".") -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the different texts, and which of them each row has, -1 where a value is missing."""
    texts: dict[str, int] = {}
    short = (canonical(cell, decimal) for cell in cells.different)
    codes = [-1 if is_missing(text) else texts.setdefault(text, len(texts)) for text in short]
    return tuple(texts), cells.expand(codes, np.int32)


def check_numbers(place: ColumnPlace, cells: Cells, numbers: Sequence[float | None], decimal: Decimal) -> None:
    """Raise DataError when a column is of numbers for the most part, and something in it is none."""
    wrong = [cell for cell, value in zip(cells.different, numbers, strict=True) if value is None]
    if not wrong:
        check_sizes(place, cells, numbers)
        return
    present = cells.count({cell for cell in cells.different if not is_missing(cell)})
    others = [cell for cell in wrong if OTHER_MARK[decimal].fullmatch(cell)]
    if others and 2 * cells.count(set(others)) >= present:
        raise other_mark_error(place, cells, others[0], decimal)
    if 2 * cells.count(set(wrong)) < present:
        raise_faults(
            [
                place.error(
                    cells.first(cell),
                    f"holds {cell!r}, which is not a number, while most of the column is numbers: correct it, leave "
                    "the cell empty if the value is missing, or read the whole column as categories by "
                    f"csv.categories={place.name}",
                    "no-number",
                )
                for cell in wrong[:MAX_FAULTS]
            ]
        )


def check_target(place: ColumnPlace, cells: Cells) -> None:
    """Raise DataError when a target of numbers has decimal points, and commas are the run's decimal marks."""
    others = [cell for cell in cells.different if DECIMAL_POINT.fullmatch(cell)]
    rest = {*cells.different}.difference(others)
    if others and all(is_missing(cell) or parse_number(cell, ",") is not None for cell in rest):
        raise other_mark_error(place, cells, others[0], ",")


def other_mark_error(place: ColumnPlace, cells: Cells, cell: str, decimal: Decimal) -> DataError:
    """Return the error of a column of numbers with another decimal mark than the run's."""
    if decimal == ".":
        wrong = (
            f"holds {cell!r}, a number with a comma: say csv.decimal=, if that is the decimal mark of all files; "
            f"if others have points, say csv.commas={place.source.path.stem}, with all such files; otherwise write "
            "decimal points; thousands have no separator"
        )
        return place.error(cells.first(cell), wrong, "decimal-comma")
    wrong = (
        f"holds {cell!r}, a number with a point, and csv.decimal or csv.commas says that the file has commas: write "
        "decimal commas, and no thousands separators, or leave csv.decimal out, and name in csv.commas only the files "
        f"that have commas; if it is no number, say csv.categories={place.name}"
    )
    return place.error(cells.first(cell), wrong, "decimal-point")


def check_sizes(place: ColumnPlace, cells: Cells, numbers: Sequence[float | None]) -> None:
    """Raise DataError when a number is too large to be squared and summed."""
    for cell, value in zip(cells.different, numbers, strict=True):
        if value is not None and abs(value) > MAX_NUMBER:
            wrong = f"holds {cell}: correct it, or leave the cell empty; numbers are at most {MAX_NUMBER:g}"
            raise place.error(cells.first(cell), wrong, "large-number")


def check_length(place: ColumnPlace, cells: Cells) -> None:
    """Raise DataError when a text is longer than that of a category or class."""
    longest = max(cells.different, key=len, default="")
    if len(longest) > MAX_TEXT:
        raise place.error(
            cells.first(longest),
            f"holds a text of {len(longest)} characters, and a category has at most {MAX_TEXT}: leave the column out "
            f"by csv.ignore={place.name}",
            "long-text",
            characters=len(longest),
        )

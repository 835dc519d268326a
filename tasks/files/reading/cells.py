"""The cells of a file as pyarrow arrays, and the one conversion of a column of them: to numbers, or to texts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .numbers import MISSING, Decimal, format_number, is_missing, parse_number
from .table import Source

MAX_NUMBER = 1e100
"""Numbers beyond cannot be squared and summed."""

BLANKS = tuple("".join(each) for blank in MISSING for each in product(*({c.lower(), c.upper()} for c in blank)))
"""Every spelling of a missing value."""

Values = Any
"""A column as pyarrow holds it: a ChunkedArray of texts, or of numbers where the file's columns have types."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """A file's columns as pyarrow has them, before they become numbers or texts, with their names."""

    source: Source
    header: Sequence[str]
    columns: Sequence[Values]


@dataclass(frozen=True, eq=False)
class Cells:
    """The different cells of a column, in the order of their first rows, and which of them each row has."""

    different: tuple[str, ...]
    places: NDArray[np.int32]

    def expand(self, values: Sequence[Any], kind: type[Any]) -> NDArray[Any]:
        """Return the value of each row, from those of the different cells."""
        return np.array(values, kind)[self.places] if values else np.zeros(0, kind)

    def first(self, cell: str) -> int:
        """Return the row that has a cell first."""
        return int(np.argmax(self.places == self.different.index(cell)))

    def count(self, which: Collection[str]) -> int:
        """Return how many rows have one of these cells."""
        chosen = [k for k, cell in enumerate(self.different) if cell in which]
        return int(np.isin(self.places, chosen).sum())


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column that holds nothing but numbers and missing values: what `Column` has of it."""

    numbers: NDArray[np.float64]
    blanks: tuple[str, ...]
    missing: NDArray[np.int8]


def to_cells(values: Values, decimal: Decimal = ".") -> Cells:
    """Return the cells of a column as a CSV file would have them, without the spaces around them."""
    import pyarrow as pa  # imported late: a server reads no tables

    texts = values if pa.types.is_string(values.type) else _format_numbers(values, decimal)
    coded = texts.dictionary_encode().combine_chunks()
    numbering: dict[str, int] = {}
    codes = [numbering.setdefault(text.strip(), len(numbering)) for text in coded.dictionary.to_pylist()]
    return Cells(tuple(numbering), np.array(codes, np.int32)[np.from_dlpack(coded.indices)])


def _format_numbers(values: Values, decimal: Decimal) -> Values:
    import pyarrow as pa

    coded = values.dictionary_encode().combine_chunks()
    if pa.types.is_integer(values.type):
        texts = list(map(str, coded.dictionary.to_pylist()))
    else:
        texts = [format_number(number, decimal) for number in coded.dictionary.cast(pa.float64()).to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string()).take(coded.indices).fill_null("")])


def to_numbers(values: Values, decimal: Decimal = ".") -> Numbers | None:
    """Return a column's numbers; None where `to_cells` must read it, since Python knows more spellings than pyarrow."""
    import pyarrow as pa
    from pyarrow import compute

    if not pa.types.is_string(values.type):
        numbers = _to_array(values.cast(pa.float64(), safe=False).fill_null(np.nan))
        spellings = np.where(np.isnan(numbers), BLANKS.index(""), -1)
    else:
        first = values[0].as_py().strip() if len(values) else ""
        if not is_missing(first) and parse_number(first, decimal) is None:
            return None  # as in nearly every column of texts: without a look at the others
        if decimal == ",":
            if compute.any(compute.match_substring(values, ".")).as_py():
                return None
            values = compute.replace_substring(values, ",", ".")
        try:
            numbers = _to_array(values.cast(pa.float64()))
            if _are_usable(numbers):
                return Numbers(numbers, (), np.zeros(len(values), np.int8))
        except pa.ArrowInvalid:
            pass  # some of them may be blank
        trimmed = compute.ascii_trim_whitespace(values)
        blank = compute.index_in(trimmed, value_set=pa.array(BLANKS))
        try:
            numbers = _to_array(compute.if_else(blank.is_valid(), "nan", trimmed).cast(pa.float64()))
        except pa.ArrowInvalid:
            return None
        spellings = _to_array(blank.fill_null(-1))
    blanks, missing = _number_blanks(spellings)
    return Numbers(numbers, blanks, missing) if _are_usable(numbers[missing == 0]) else None


def _are_usable(numbers: NDArray[np.float64]) -> bool:
    """Return whether all numbers are finite, and can be squared and summed."""
    return not len(numbers) or bool(numbers.min() >= -MAX_NUMBER and numbers.max() <= MAX_NUMBER)


def _to_array(values: Values) -> NDArray[Any]:
    return np.from_dlpack(values.combine_chunks())  # to_numpy would import pandas where it is installed


def _number_blanks(spellings: NDArray[np.int32]) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    """Return the spellings of missing values in the order of their first rows, and which each row has, from 1."""
    different, rows = np.unique(spellings, return_index=True)
    ordered = [place for place in different[np.argsort(rows)].tolist() if place >= 0]
    numbering = np.zeros(len(BLANKS) + 1, np.int8)  # the last is that of -1, which has a value
    numbering[ordered] = np.arange(1, len(ordered) + 1)
    return tuple(BLANKS[place] for place in ordered), numbering[spellings]

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
    # to_numpy would import pandas where it is installed
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

    numbers = np.empty(len(values), np.float64)
    missing = np.zeros(len(values), np.int8)
    blanks: dict[str, int] = {}
    filled = 0
    for chunk in values.chunks:
        block = slice(filled, filled + len(chunk))
        filled = block.stop
        if pa.types.is_string(chunk.type):
            usable = _parse_texts(chunk, decimal, numbers[block], missing[block], blanks)
        else:
            usable = _take_numbers(chunk, numbers[block], missing[block], blanks)
        if not usable:
            return None
    return Numbers(numbers, tuple(blanks), missing)


def _take_numbers(
    chunk: Values, numbers: NDArray[np.float64], missing: NDArray[np.int8], blanks: dict[str, int]
) -> bool:
    """Write a block of numbers, and which of them are missing; return False where one is beyond all reason."""
    numbers[:] = np.from_dlpack(chunk.cast("float64", safe=False).fill_null(np.nan))
    missing[:] = np.isnan(numbers)
    if missing.any():
        blanks[""] = 1
    return _all_usable(numbers[missing == 0])


def _parse_texts(
    chunk: Values, decimal: Decimal, numbers: NDArray[np.float64], missing: NDArray[np.int8], blanks: dict[str, int]
) -> bool:
    """Write the numbers of a block of texts, and which of the blanks each is, from 1; return whether all are such."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(chunk):
        return True
    first = chunk[0].as_py().strip()
    if parse_number(first, decimal) is None and not is_missing(first):
        return False  # as in nearly every column of texts: without a look at the others
    if decimal == ",":
        if pc.any(pc.match_substring(chunk, ".")).as_py():
            return False
        chunk = pc.replace_substring(chunk, ",", ".")
    try:
        numbers[:] = np.from_dlpack(chunk.cast(pa.float64()))
        if _all_usable(numbers):
            return True
    except pa.ArrowInvalid:
        pass  # some of them may be blank
    trimmed = pc.ascii_trim_whitespace(chunk)
    blank = pc.index_in(trimmed, value_set=pa.array(BLANKS))
    try:
        numbers[:] = np.from_dlpack(pc.if_else(blank.is_valid(), "nan", trimmed).cast(pa.float64()))
    except pa.ArrowInvalid:
        return False
    spellings = np.from_dlpack(blank.fill_null(-1))
    different, rows = np.unique(spellings, return_index=True)
    for spelling in different[np.argsort(rows)]:
        if spelling >= 0:
            blanks.setdefault(BLANKS[spelling], len(blanks) + 1)
    missing[:] = np.array([*(blanks.get(blank, 0) for blank in BLANKS), 0], np.int8)[spellings]
    return _all_usable(numbers[missing == 0])


def _all_usable(numbers: NDArray[np.float64]) -> bool:
    """Return whether all numbers are finite, and can be squared and summed."""
    return not len(numbers) or bool(numbers.min() >= -MAX_NUMBER and numbers.max() <= MAX_NUMBER)

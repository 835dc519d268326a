"""Columns of one site that may be codes, for the eyes of their owner."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from .column_laws import MAX_NUMBERED_CLASSES, find_signs_of_codes
from .encoding import ColumnValues
from .names_by_number import Outcomes, act_as_names, draw_rows
from .survey import Column


def find_own_codes(columns: Mapping[str, Column], target: str = "") -> Iterator[tuple[str, str]]:
    """Yield the columns of a site with numbers that may be codes, and what shows it.

    Parameters
    ----------
    columns
        The columns by name, with one row of each person.
    target
        The column that shows which numbers act as names; "" for none.
    """
    outcome = _outcome_of(columns[target]) if target else np.empty(0)
    is_known = np.isfinite(outcome) if outcome.dtype.kind == "f" else outcome >= 0
    rows = draw_rows(is_known)
    outcomes = Outcomes.of(outcome[rows], np.zeros(len(rows), np.int64))
    for name, column in columns.items():
        numbers = column.numbers[column.codes]
        if name == target or np.isnan(numbers).all():
            continue
        shown = find_signs_of_codes(name, column)
        if not shown and act_as_names(numbers[rows], outcomes):
            shown = f"by {target}, its numbers act as names, not as amounts"
        if shown:
            yield name, shown


def _outcome_of(column: Column) -> ColumnValues:
    """Return a column as a quantity, NaN for none, or if it has few values as classes, -1."""
    numbers: NDArray[np.float64] = column.numbers[column.codes]
    if len(column.number_counts[0]) > MAX_NUMBERED_CLASSES:
        return numbers
    classes = column.codes.copy()
    _, of_number = np.unique(numbers, return_inverse=True)
    is_number = ~np.isnan(numbers)
    classes[is_number] = len(column.numbers) + of_number[is_number]
    _, classes = np.unique(classes, return_inverse=True)
    return np.where(column.is_present, classes, -1)

"""Find columns from which the target follows: they are often known only after the outcome."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .encoding import ColumnValues

# Rows of a class, or of a value, that show that a column determines the target.
FEWEST_ROWS = 5

# Share of rows in which a column's value determines the target.
DETERMINED = 0.95

# Rows that show whether a column may determine the target.
SAMPLE = 5_000

# Correlation with a quantity above which a column determines it.
CORRELATED = 0.999


def present_values(values: ColumnValues) -> ColumnValues:
    """Return the values of a column that are neither missing nor faulty."""
    return values[_is_usable(values)]


def _is_usable(values: ColumnValues) -> NDArray[np.bool_]:
    return np.isfinite(values) if values.dtype.kind == "f" else values >= 0


def determines(values: ColumnValues, target: ColumnValues) -> bool:
    """Return whether a column determines the target; both have the rows of all sites."""
    usable = _is_usable(values) & _is_usable(target)
    values = values[usable]
    target = target[usable]
    if (
        len(values) < 4 * FEWEST_ROWS
        or values.min() == values.max()
        or target.min() == target.max()
    ):
        return False
    if target.dtype.kind == "f":
        return values.dtype.kind == "f" and abs(np.corrcoef(values, target)[0, 1]) > CORRELATED
    # A few rows show at once that most columns do not.
    some = slice(None, None, 1 + len(values) // SAMPLE)
    if values.dtype.kind == "f" and _are_intervals(values[some], target[some]):
        counts = np.bincount(target)
        if counts[counts > 0].min() >= FEWEST_ROWS and _are_intervals(values, target):
            return True
    if _share_of_one_class(values[some], target[some]) < 0.0:
        return False
    # All rows of a few values, chosen by their bits, show that most columns of floats do not.
    bits = values.astype(np.float64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    few = bits >> np.uint64(58) == 0
    if few.sum() > SAMPLE and _share_of_one_class(values[few], target[few]) < DETERMINED / 2:
        return False
    return _share_of_one_class(values, target) >= DETERMINED


def _share_of_one_class(values: ColumnValues, target: ColumnValues) -> float:
    """Return the share of rows with a frequent value that has one class.

    Return -1 if a frequent value has several classes.
    """
    kinds, codes = np.unique(values, return_inverse=True)
    table = np.zeros((len(kinds), int(target.max()) + 1), np.int64)
    np.add.at(table, (codes, target), 1)
    rows = table.sum(axis=1)
    is_frequent = rows >= FEWEST_ROWS
    if (table.max(axis=1) < rows)[is_frequent].any():
        return -1.0
    return float(rows[is_frequent].sum() / len(values))


def _are_intervals(values: NDArray[np.float64], target: ColumnValues) -> bool:
    """Return whether each class is one interval of the numbers."""
    parts = [values[target == value] for value in np.unique(target)]
    ends = sorted((part.min(), part.max()) for part in parts)
    return all(end < start for (_, end), (start, _) in pairwise(ends))

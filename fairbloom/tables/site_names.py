"""Tell columns that say which site a row is of: nearly each value is of one site only."""

import numpy as np
from numpy.typing import NDArray

from .schema import fold_cell
from .survey import Column

# A column names the site if so many rows, of those with a value that occurs twice, have a value of
# one site only. Fewer such rows, or a smaller share of all rows, show nothing.
OF_ONE_SITE = 0.95
REPEATED = 0.5
FEWEST_ROWS = 20

# Of more rows, all those of some values are chosen by the values' bits, a part in SHARE, unless
# they are too few.
MANY_ROWS = 200_000
SHARE = 64
FEWEST_CHOSEN = 1_000
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def names_the_site(column: Column) -> bool:
    """Return whether nearly each value of a column is of one site only."""
    if np.count_nonzero(column.is_there) < 2:
        return False
    present = column.is_present if column.is_missing.any() else slice(None)
    values, sites = _choose(_keys_of(column)[column.codes[present]], column.sites.of_row[present])
    if not len(values):
        return False
    kinds, codes = np.unique(values, return_inverse=True)
    counts = np.bincount(codes)
    several = len(column.sites.names)
    pairs = np.unique(codes * several + sites) // several
    is_of_one = np.bincount(pairs, minlength=len(kinds)) == 1
    repeated = counts * (counts > 1)
    rows = int(repeated.sum())
    are_enough = rows >= max(FEWEST_ROWS, REPEATED * len(values)) and len(kinds) > 1
    return are_enough and int((repeated * is_of_one).sum()) >= OF_ONE_SITE * rows


def _keys_of(column: Column) -> NDArray[np.float64]:
    """Return a number for each cell, the same for equal ones: 1 for 1.0, and GE2 for ge2."""
    keys = column.numbers.copy()
    known: dict[str, float] = {}
    for entry, text in column.texts.items():
        if np.isnan(keys[entry]):
            keys[entry] = known.setdefault(fold_cell(text), 1e200 * (1.0 + len(known)))
    return keys


def _choose(
    values: NDArray[np.float64], sites: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all rows, or of many those of some values."""
    if len(values) > MANY_ROWS:
        is_chosen = (values.view(np.uint64) * MULTIPLIER) >> np.uint64(58) == 0
        if is_chosen.sum() >= FEWEST_CHOSEN:
            return values[is_chosen], sites[is_chosen]
    return values, sites

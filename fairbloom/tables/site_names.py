"""Tell columns that say which site a row is of: nearly each value is of one site only."""

import numpy as np
from numpy.typing import NDArray

from .schema import fold_cell
from .survey import Column

# A column names the site if this share of the rows with a value that occurs twice have a value of
# one site only. Fewer such rows, or a smaller share of all rows, show nothing.
OF_ONE_SITE = 0.95
REPEATED = 0.5
FEWEST_ROWS = 20

# Of more rows, the rows of some values, chosen by the values' bits, show that most columns do not.
MANY_ROWS = 200_000
FEWEST_CHOSEN = 1_000
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def names_the_site(column: Column) -> bool:
    """Return whether nearly each value of a column is of one site only."""
    if np.count_nonzero(column.is_there) < 2:
        return False
    several = len(column.sites.names)
    keys = _keys_of(column)
    if several * len(keys) <= len(column.codes):  # few different cells are counted
        cells = np.bincount(column.sites.of_row * len(keys) + column.codes)
        sites, entries = np.divmod(np.flatnonzero(cells), len(keys))
        counts = cells[cells > 0]
        is_present = ~column.is_missing[entries]
        return _are_of_one_site(keys[entries[is_present]], sites[is_present], counts[is_present])
    rows = np.flatnonzero(column.is_present)
    values = keys[column.codes[rows]]
    sites = column.sites.of_row[rows]
    if len(values) > MANY_ROWS:
        is_chosen = (values.view(np.uint64) * MULTIPLIER) >> np.uint64(58) == 0
        are_enough = is_chosen.sum() >= FEWEST_CHOSEN
        if are_enough and not _are_of_one_site(values[is_chosen], sites[is_chosen]):
            return False
    return _are_of_one_site(values, sites)


def _are_of_one_site(
    values: NDArray[np.float64],
    sites: NDArray[np.int64],
    rows: NDArray[np.int64] | None = None,
) -> bool:
    """Return whether values are of one site each; `rows` has the rows of each, by default one."""
    if not len(values):
        return False
    weights = np.ones(len(values), np.int64) if rows is None else rows
    kinds, codes = np.unique(values, return_inverse=True)
    counts = np.bincount(codes, weights)
    several = int(sites.max()) + 1
    pairs = np.unique(codes * several + sites) // several
    is_of_one = np.bincount(pairs, minlength=len(kinds)) == 1
    repeated = np.where(counts > 1, counts, 0)
    count = int(repeated.sum())
    are_enough = count >= max(FEWEST_ROWS, REPEATED * int(weights.sum())) and len(kinds) > 1
    return are_enough and int(repeated[is_of_one].sum()) >= OF_ONE_SITE * count


def _keys_of(column: Column) -> NDArray[np.float64]:
    """Return a number for each cell, the same for equal ones: 1 for 1.0, and GE2 for ge2."""
    keys = column.numbers.copy()
    known: dict[str, float] = {}
    for entry, text in column.texts.items():
        if np.isnan(keys[entry]):
            keys[entry] = known.setdefault(fold_cell(text), 1e200 * (1.0 + len(known)))
    return keys

"""Rows that several clients on one machine have: a file that was copied, or that holds another client's rows."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.void]
"""Rows as their bytes, shape (n,), which can be sorted."""


def pack_rows(columns: Mapping[str, NDArray[np.number]]) -> Rows:
    """Return rows of columns as their bytes."""
    cells = np.stack([columns[name].astype(np.float64) + 0.0 for name in sorted(columns)], axis=1)  # 0 in place of -0
    return np.ascontiguousarray(cells).view(f"V{cells.shape[1] * 8}").ravel()


def find_shared_rows(rows: Mapping[str, Rows]) -> dict[str, str]:
    """Return a warning for each client that shares more rows with another one than repeats would explain."""
    counted = {name: np.unique(each, return_counts=True) for name, each in rows.items()}
    equal = sum(float((counts * (counts - 1.0)).sum()) for _, counts in counted.values())
    pairs = sum(len(each) * (len(each) - 1.0) for each in rows.values())
    found: dict[str, str] = {}
    for name, (different, counts) in counted.items():
        once = different[counts == 1]
        for other, (theirs, their_counts) in counted.items():
            if other == name or name in found:
                continue
            if np.array_equal(different, theirs) and np.array_equal(counts, their_counts):
                found[name] = f"it has the same rows as {other}: leave one of the two out"
                continue
            shared = int(np.isin(once, theirs, assume_unique=True).sum())
            by_chance = len(rows[name]) * -np.expm1(-len(rows[other]) * equal / max(pairs, 1.0))
            if shared >= 5 + 2.0 * by_chance:  # fewer may be a coincidence
                found[name] = (
                    f"{shared} of its {len(rows[name])} rows are in the data of {other}, too: if they are the same "
                    "cases, leave them out of one of the two"
                )
    return found

"""Numbers of rows: equal rows have the same."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .encoding import ColumnValues

# Odd numbers that mix the bits of a hash, from SplitMix64.
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

# Every missing number has the same bits.
NO_NUMBER = np.uint64(0x7FF8000000000000)


def hash_rows(columns: Sequence[ColumnValues]) -> NDArray[np.uint64]:
    """Return a number for each row of some columns: equal rows have the same."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        if column.dtype.kind == "f":
            # Adding 0 turns -0.0 into 0.0.
            bits = (column.astype(np.float64) + 0.0).view(np.uint64)
            bits[np.isnan(column)] = NO_NUMBER
        else:
            bits = column.astype(np.int64).view(np.uint64)
        hashes = (hashes ^ bits) + MIX[0]  # in arithmetic modulo 2**64
        for factor, shift in zip(MIX, (30, 27), strict=True):
            hashes = (hashes ^ (hashes >> np.uint64(shift))) * factor
        hashes ^= hashes >> np.uint64(31)
    return hashes

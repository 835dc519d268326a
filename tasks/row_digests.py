"""What tells the rows of a device apart for its ledger, whatever the settings of a run make of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]

Digest = Callable[[bytes], int]
"""A keyed digest of 8 bytes: nobody without the device's key can find what it is of."""


@dataclass(frozen=True, eq=False)
class RowsBehind:
    """What tells a client's rows apart, and which of them are behind each number of its summary.

    `identify` returns a digest of each example, in the order of its tensors; equal rows have different digests.
    """

    identify: Callable[[Digest], Digests]
    summary: Mapping[str, NDArray[np.intp]]


def tell_apart(digests: Iterable[int]) -> Digests:
    """Return digests of which equal ones are made different, by how many came before."""
    found = np.fromiter(digests, np.uint64)
    order = np.argsort(found, kind="stable")
    ordered = found[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ranks = np.arange(len(found)) - np.repeat(starts, np.diff(np.r_[starts, len(found)]))
    found[order] += ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # an odd number: no two ranks coincide
    return found


def digest_table(columns: Mapping[str, tuple[Sequence[str], NDArray[Any]]], digest: Digest) -> Digests:
    """Return a digest of each row of a table, whatever the order of its columns, from their different cells and places.

    Only ASCII counts, so that no encoding that a run states makes other rows of these.
    """
    total: Digests | None = None
    for name, (cells, places) in columns.items():
        start = f"{name.lower()}\0".encode("ascii", "ignore")
        of_cells = [digest(start + cell.encode("ascii", "ignore")) for cell in cells]
        found = np.array([*of_cells, 0], np.uint64)[places]
        total = found if total is None else total + found
    return tell_apart([] if total is None else total.tolist())

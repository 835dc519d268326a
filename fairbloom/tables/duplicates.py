"""Count the rows that clients have in common."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import join_names

from .encoding import ClientTable, ColumnValues

Hashes = NDArray[np.uint64]

# Odd numbers that mix the bits of a hash, from SplitMix64.
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

# Every missing number has the same bits.
NO_NUMBER = np.uint64(0x7FF8000000000000)

# Equal rows are remarked if they exceed this multiple of their number by chance, plus its standard
# deviation.
FREQUENT = 5.0

# Fewer equal rows are not remarked: some sites of public tables without copies have up to four.
FEWEST = 5

# Sets of clients with rows in common that are looked at, those with most rows first: the rows of a
# few categories are common to very many sets.
MAX_SETS = 500


def find_duplicates(tables: Mapping[str, ClientTable]) -> Iterator[tuple[str, str]]:
    """Yield (sites, remark) pairs on rows that are equal in every column, most rows first.

    If rows belong to units, their names are a column. Rows with few categories are often equal by
    chance: they are not reported. Rows that are left out, or have a cell that cannot be read, do
    not count.
    """
    hashes_of = {
        file: hash_rows([*file.columns.values(), *file.name_units()])
        for file in {table.file for table in tables.values()}
    }
    clients = {
        name: hashes_of[file][rows[(file.usable & ~file.has_unknown)[rows]]]
        for name, (file, rows) in tables.items()
    }
    if not any(map(len, clients.values())):
        return
    hashes = np.concatenate([*clients.values()])
    sites = np.repeat(np.arange(len(clients)), [*map(len, clients.values())])
    names = [*clients]
    found = _count_common(hashes, sites, len(clients))
    for count, places in sorted(found, key=lambda pair: -pair[0]):
        if count < FEWEST:
            return
        holders = [names[place] for place in places]
        expected = _expect_equal([clients[name] for name in holders])
        if count > FREQUENT * (expected + np.sqrt(expected)):
            yield (
                join_names(holders),
                f"{count:,} rows are the same at each in every column: if they are copies, keep"
                " them at one",
            )


def hash_rows(columns: Sequence[ColumnValues]) -> Hashes:
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


def _count_common(
    hashes: Hashes, sites: NDArray[np.int64], count: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield the number of different rows that several sites have in common, and these sites."""
    order = np.lexsort((sites, hashes))
    hashes = hashes[order]
    sites = sites[order]
    # Each site counts once for each row.
    is_first = np.ones(len(hashes), np.bool_)
    is_first[1:] = (np.diff(hashes) != 0) | (np.diff(sites) != 0)
    hashes = hashes[is_first]
    sites = sites[is_first]
    starts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))
    holders = np.diff(starts, append=len(hashes))
    starts = starts[holders > 1]
    holders = holders[holders > 1]
    if not len(starts):
        return
    # The sites of a row as one number: a sum of hashes of sites, which needs no loop over rows.
    sums = np.concatenate(
        [np.zeros(1, np.uint64), np.cumsum(hash_rows([np.arange(count)])[sites], dtype=np.uint64)]
    )
    _, examples, rows = np.unique(
        sums[starts + holders] - sums[starts], return_index=True, return_counts=True
    )
    held: dict[frozenset[int], int] = {}
    for place in np.argsort(-rows, kind="stable")[:MAX_SETS].tolist():
        start = int(starts[examples[place]])
        held[frozenset(sites[start : start + int(holders[examples[place]])].tolist())] = rows[place]
    for some in held:
        # Rows that other sites share as well count here too.
        yield sum(int(each) for others, each in held.items() if some <= others), sorted(some)


def _expect_equal(clients: Sequence[Hashes]) -> float:
    """Return how many pairs of rows of the first two clients are equal by chance, by their hashes.

    Two rows of one client are as often: its rows repeat only by chance.
    """
    equal = 0
    pairs = 0
    for hashes in clients[:2]:
        counts = np.unique(hashes, return_counts=True)[1]
        equal += int((counts * (counts - 1)).sum())
        pairs += len(hashes) * (len(hashes) - 1)
    return len(clients[0]) * len(clients[1]) * equal / max(pairs, 1)

"""Find rows that a client has twice, and rows that clients have in common.

Rows of few categories are equal by nature, and columns depend on each other. Rows that are nearly
equal tell how often: of the pairs of rows that are equal in all columns but two, let b be equal in
the first of the two as well, e in the second, and f in neither. Unless one says something about the
other, about b · e / f are equal in both. Copies are equal in both without being equal in one.

Whole tables need no such estimate: hardly by nature does each of many different rows occur an even
number of times, or as often at one client as at another.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import prod, sqrt
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .encoding import ClientTable, ColumnValues
from .hashes import hash_rows

Hashes = NDArray[np.uint64]

# Fewer equal rows are not remarked: some sites of public tables without copies have up to four.
FEWEST = 5

# Equal rows are remarked beyond this multiple of those expected and their standard deviation. At
# 1,048 sites of public tables with as many equal rows, but no copies, it was at most 4.1.
TIMES = 5.0

# Different rows of a table that show that all of it is there twice: by nature each occurs an even
# number of times in about half of the cases.
SURE = 20

# Columns with the fewest equal cells, and how many of these are left out of comparisons in pairs.
FINE = 6
CROSSED = 3

# Different rows that show which columns follow from another one.
MAX_DIFFERENT = 2_000

# Sets of clients with rows in common that are looked at, the largest share of a client first.
MAX_SETS = 20


class CommonRows(NamedTuple):
    """The number of rows that some clients have in common, and whether it is all of their rows."""

    clients: Sequence[str]
    rows: int
    are_all: bool


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """The rows of a client that are compared; all clients have the same columns."""

    columns: Mapping[str, ColumnValues]
    rows: NDArray[np.intp]

    @classmethod
    def of(cls, table: ClientTable) -> Self:
        """Return the rows of a table that are used and can be read, the first of each unit."""
        file, rows = table
        rows = rows[file.usable[rows] & ~file.has_unknown[rows]]
        if file.units is not None:
            rows = rows[np.unique(file.units[rows], return_index=True)[1]]
        return cls(file.columns, rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def hash_cells(self, name: str) -> Hashes:
        """Return a number for each cell of a column; equal cells have the same."""
        place = [*self.columns].index(name)
        return hash_rows([np.full(len(self), place), self.columns[name][self.rows]])

    @cached_property
    def keys(self) -> Hashes:
        """A number for each row, the sum of its cells' numbers; equal rows have the same."""
        keys = np.zeros(len(self), np.uint64)
        for name in self.columns:
            keys += self.hash_cells(name)  # modulo 2**64
        return keys

    def keys_without(self, names: Collection[str]) -> Hashes:
        """Return a number for each row without some of its cells."""
        keys = self.keys.copy()
        for name in names:
            keys -= self.hash_cells(name)
        return keys

    @cached_property
    def different(self) -> "ComparedRows":
        """One of each of the rows that are equal, in the order of their keys."""
        return replace(self, rows=self.rows[np.unique(self.keys, return_index=True)[1]])

    @cached_property
    def fingerprint(self) -> tuple[int, int]:
        """What tables with the same rows share, each as often, in any order."""
        of_rows = hash_rows([self.keys.view(np.int64)])
        return len(self), int(of_rows.sum(dtype=np.uint64))


def find_repeated(clients: Mapping[str, ComparedRows]) -> dict[str, int]:
    """Return how many rows of each client repeat another one, if there are more than by nature."""
    found: dict[str, int] = {}
    for name, rows in clients.items():
        counts = np.unique(rows.keys, return_counts=True)[1]
        repeated = len(rows) - len(counts)
        is_doubled = len(counts) >= SURE and np.gcd.reduce(counts) > 1
        if is_doubled or _are_copies(repeated, [rows]):
            found[name] = repeated
    return found


def find_common(clients: Mapping[str, ComparedRows]) -> Iterator[CommonRows]:
    """Yield the rows that clients have in common, if there are more than by nature.

    Of clients with the same table, only the first is compared with the others.
    """
    with_table: dict[object, list[str]] = {}
    for name, rows in clients.items():
        is_sure = len(rows.different) >= SURE
        with_table.setdefault(rows.fingerprint if is_sure else name, []).append(name)
    for same in with_table.values():
        if len(same) > 1:
            yield CommonRows(same, len(clients[same[0]]), are_all=True)
    yield from _compare_clients({same[0]: clients[same[0]] for same in with_table.values()})


def _compare_clients(clients: Mapping[str, ComparedRows]) -> Iterator[CommonRows]:
    """Yield the rows that clients have in common; the two with the fewest rows are compared."""
    names = [*clients]
    different = [rows.different for rows in clients.values()]
    found: list[tuple[float, list[int], int]] = []
    for holders, count in _find_sets([rows.keys for rows in different]):
        smallest_first = sorted(holders, key=lambda each: len(different[each]))
        found.append((count / len(different[smallest_first[0]]), smallest_first, count))
    for _, holders, count in sorted(found, reverse=True)[:MAX_SETS]:
        if _are_copies(count, [different[each] for each in holders[:2]]):
            yield CommonRows([names[each] for each in sorted(holders)], count, are_all=False)


def _find_sets(keys_of: Sequence[Hashes]) -> Iterator[tuple[list[int], int]]:
    """Yield sets of clients, by their places, and how many rows these hold and no others.

    Fewer than FEWEST rows are left out.
    """
    keys = np.concatenate(keys_of)
    owners = np.repeat(np.arange(len(keys_of)), [*map(len, keys_of)])
    order = np.lexsort((owners, keys))
    owners = owners[order]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(keys[order]) != 0])[: len(keys)])
    holders = np.diff(starts, append=len(keys))
    is_common = holders > 1
    # The holders of a row as one number, the sum of a number for each.
    sums = np.cumsum(hash_rows([np.arange(len(keys_of))])[owners], dtype=np.uint64)
    before = np.concatenate([np.zeros(1, np.uint64), sums])
    of_sets = (before[starts + holders] - before[starts])[is_common]
    _, firsts, counts = np.unique(of_sets, return_index=True, return_counts=True)
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        if count >= FEWEST:
            start = starts[is_common][first]
            yield owners[start : start + holders[is_common][first]].tolist(), count


def _are_copies(count: int, clients: Sequence[ComparedRows]) -> bool:
    """Return whether more rows are equal than by nature: of one client, or of two."""
    if count < FEWEST:
        return False
    expected = _expect_equal(clients)
    return count > TIMES * (expected + sqrt(expected))


def _expect_equal(clients: Sequence[ComparedRows]) -> float:
    """Return how many pairs of rows are equal by nature: of one client, or one row of each of two.

    It is at least their number if the columns said nothing about each other.
    """

    def count(without: Collection[str]) -> float:
        return _count_equal([rows.keys_without(without) for rows in clients])

    names = [*clients[0].columns]
    pairs = count(names)
    shares = {
        name: _count_equal([rows.hash_cells(name) for rows in clients]) / pairs for name in names
    }
    groups = _group_columns([rows.different for rows in clients], shares)
    following = {name for group in groups for name in group[1:]}
    expected = pairs * prod(share for name, share in shares.items() if name not in following)
    equal = count(())
    nearly_equal = {group: count(group) - equal for group in groups}
    crossed = sorted(groups, key=lambda group: -nearly_equal[group])[:CROSSED]
    for first, second in combinations(crossed, 2):
        in_one = nearly_equal[first] + nearly_equal[second]
        in_neither = count({*first, *second}) - in_one - equal
        product = nearly_equal[first] * nearly_equal[second]
        expected = max(expected, product / max(in_neither, 1.0))
    return expected


def _group_columns(
    clients: Sequence[ComparedRows], shares: Mapping[str, float]
) -> list[tuple[str, ...]]:
    """Return the columns with the fewest equal cells, each with the columns that follow from it.

    Rows that differ in an age may differ in its group of ages, too. The rows of `clients` are all
    different, and `shares` has the share of pairs of rows that are equal in a column.
    """
    some = [replace(rows, rows=rows.rows[:MAX_DIFFERENT]) for rows in clients]
    groups: list[tuple[str, ...]] = []
    following = set[str]()
    for name in sorted(shares, key=shares.__getitem__):
        if len(groups) == FINE:
            break
        if name in following:
            continue
        keys = [rows.hash_cells(name) for rows in some]
        equal = _count_equal(keys)
        group = [name]
        for other, share in shares.items():
            # Only rows that would differ by chance show that a column follows.
            if other == name or (1.0 - share) * equal < FEWEST:
                continue
            cells = [rows.hash_cells(other) for rows in some]
            if _count_equal([*map(np.add, keys, cells)]) == equal:
                group.append(other)
        groups.append(tuple(group))
        following.update(group[1:])
    return groups


def _count_equal(keys: Sequence[Hashes]) -> float:
    """Return how many pairs of keys are equal: of one client, or one key of each of two."""
    values, counts = np.unique(keys[0], return_counts=True)
    if len(keys) == 1:
        return float((counts * (counts - 1)).sum() / 2)
    others, their_counts = np.unique(keys[1], return_counts=True)
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return float(counts[here] @ their_counts[there])

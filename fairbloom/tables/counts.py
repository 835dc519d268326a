"""Counts that are printed rounded down, or not at all, and what their sums tell of the others.

Who knows the exact number of rows can tighten the range of each count by the others. A count below
the floor is known if that shows that it is not 0: it is of fewer rows than may be seen.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

# Counts for each of which a linear program is solved.
MAX_PROGRAMS = 100

# What a linear program may find for 0.
ROUNDING = 1e-6


@dataclass
class Counts:
    """Counts by key, from 0, with the range in which each is known to lie.

    Attributes
    ----------
    floor
        The least count that is printed; each printed count is a multiple of it.
    most
        The number of rows, which no count exceeds.
    true
        The counts.
    ranges
        The least and the largest value that each may have.
    sums
        Pairs of a key and of the keys that add up to it.
    """

    floor: int
    most: int
    true: dict[Hashable, int] = field(default_factory=dict)
    ranges: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    sums: list[tuple[Hashable, Sequence[Hashable]]] = field(default_factory=list)

    def know(self, key: Hashable, count: int) -> None:
        """Add a count that is known exactly."""
        self._add(key, count, count, count)

    def leave_open(self, key: Hashable, count: int) -> None:
        """Add a count of which nothing is printed, however large it is."""
        self._add(key, count, 0, self.most)

    def show(self, key: Hashable, count: int, printed: int) -> None:
        """Add a count that is printed, rounded down; `printed` is 0 where it is below the floor."""
        self._add(key, count, printed, printed + self.floor - 1)

    def add_sum(self, key: Hashable, parts: Iterable[Hashable]) -> None:
        """Add that a count is the sum of others."""
        self.sums.append((key, [*parts]))

    def find_told(self) -> list[Hashable]:
        """Return the counts from 1 to below the floor that are known not to be 0."""
        self._tighten()
        return [
            key
            for key, count in self.true.items()
            if 0 < count < self.floor and self.ranges[key][0] > 0
        ]

    def find_known(self) -> list[Hashable]:
        """Return the same, by linear programs: where sums share parts, ranges do not tell all.

        Of more than MAX_PROGRAMS such counts only what ranges tell: any may stand for another.
        """
        known = self.find_told()
        hidden = [key for key, count in self.true.items() if 0 < count < self.floor]
        if known or not hidden or len(hidden) > MAX_PROGRAMS:
            return known
        if self._find_least(hidden) <= ROUNDING:  # all may be 0 at once
            return []
        return [key for key in hidden if self._find_least([key]) > ROUNDING]

    def _find_least(self, keys: Sequence[Hashable]) -> float:
        """Return the least sum of counts that the ranges and sums allow."""
        from scipy.optimize import linprog  # imported late: a server has no counts

        weights = [float(key in keys) for key in self.true]
        bounds = [self.ranges[key] for key in self.true]
        found = linprog(weights, A_eq=self._equations, b_eq=np.zeros(len(self.sums)), bounds=bounds)
        return float(found.fun) if found.success else math.inf

    @cached_property
    def _equations(self) -> Any:
        """The sums as a sparse matrix of shape (sums, counts): each row times the counts is 0."""
        from scipy.sparse import lil_array

        places = {key: place for place, key in enumerate(self.true)}
        rows = lil_array((len(self.sums), len(places)))
        for row, (key, parts) in enumerate(self.sums):
            rows[row, places[key]] -= 1.0
            for part in parts:
                rows[row, places[part]] += 1.0
        return rows.tocsr()

    def _add(self, key: Hashable, count: int, low: int, high: int) -> None:
        self.true[key] = count
        self.ranges[key] = (low, high)

    def _tighten(self) -> None:
        """Tighten the ranges by the sums until none moves."""
        moves = True
        while moves:
            moves = False
            for key, parts in self.sums:
                moves |= self._tighten_by(key, parts)

    def _tighten_by(self, key: Hashable, parts: Sequence[Hashable]) -> bool:
        """Tighten the ranges of one sum; return whether one has moved."""
        low = sum(self.ranges[part][0] for part in parts)
        high = sum(self.ranges[part][1] for part in parts)
        moves = self._narrow(key, low, high)
        least, largest = self.ranges[key]
        for part in parts:
            below, above = self.ranges[part]
            moves |= self._narrow(part, least - (high - above), largest - (low - below))
        return moves

    def _narrow(self, key: Hashable, low: int, high: int) -> bool:
        before = self.ranges[key]
        self.ranges[key] = max(before[0], low), min(before[1], high)
        return self.ranges[key] != before

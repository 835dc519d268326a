"""Tell numbers that act as names, such as codes and wards, from amounts.

The mean outcome of an amount goes along with it: a smooth curve, or one with at most one turn,
explains how the outcome differs between values. Between names it differs in any way. So the test
asks what the best of such curves leaves unexplained between values, in multiples of what differs
within them (a test of lack of fit).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .encoding import ColumnValues

# Fewer values, rows, or rows of a value on average, show nothing.
FEWEST_VALUES = 5
FEWEST_ROWS = 100
ROWS_OF_VALUE = 5

# Rows that are drawn of more.
MAX_ROWS = 100_000

# Classes that are outcomes, the most frequent ones; the last follows from the others.
MAX_CLASSES = 8

# The largest degree of a polynomial, and the degree for few values: a third of their number.
MAX_DEGREE = 7
MIN_DEGREE = 3

# Values act as names below this probability, over all outcomes, and above this share of the
# variance that the curve leaves. Four columns of codes had shares of 0.26 to 0.43; of 116 numeric
# columns of 23 public sets, these limits name three, all of them codes.
LARGEST_P = 1e-4
SMALLEST_GAIN = 0.05

# In place of a variance of 0.
TINY = 1e-300


def draw_rows(is_usable: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the places of usable rows, MAX_ROWS at most, ascending; the same in each run."""
    rows = np.flatnonzero(is_usable)
    if len(rows) <= MAX_ROWS:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What a target is compared by: numbers less the mean of their site, shape (k, rows)."""

    numbers: NDArray[np.float64]
    sites: NDArray[np.int64]

    @classmethod
    def of(cls, target: ColumnValues, sites: NDArray[np.int64]) -> "Outcomes":
        """Return the outcomes of a target without missing values: each class, or the ranks."""
        if target.dtype.kind == "f":
            numbers = _rank(target)[None]
        else:
            counts = np.bincount(target)
            frequent = np.argsort(-counts, kind="stable")[:MAX_CLASSES]
            classes = frequent[counts[frequent] > 0][:-1]
            numbers = (target[None] == classes[:, None]).astype(np.float64)
        return cls(numbers, sites).take(np.arange(len(target)))

    def take(self, rows: NDArray[np.intp]) -> "Outcomes":
        """Return the outcomes of some rows, less their own sites' means."""
        numbers = self.numbers[:, rows]
        sites = self.sites[rows]
        counts = np.maximum(np.bincount(sites), 1)
        sums = [np.bincount(sites, each) / counts for each in numbers]
        means = np.reshape(sums, (len(numbers), len(counts)))
        return Outcomes(numbers - means[:, sites], sites)


def act_as_names(values: NDArray[np.float64], outcomes: Outcomes) -> bool:
    """Return whether values act as names; False if there is too little to show it.

    Parameters
    ----------
    values
        The numbers of rows, one row of each person; NaN for none.
    outcomes
        The outcomes of the same rows.
    """
    has_value = np.isfinite(values)
    rows = len(values) if has_value.all() else int(has_value.sum())
    if rows < FEWEST_ROWS or not len(outcomes.numbers):
        return False
    if rows < len(values):
        present = np.flatnonzero(has_value)
        values = values[present]
        outcomes = outcomes.take(present)
    kinds, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(kinds) < FEWEST_VALUES or rows < ROWS_OF_VALUE * len(kinds):
        return False
    degree = min(MAX_DEGREE, max(MIN_DEGREE, len(kinds) // 3))
    free = _Freedom(len(kinds) - 1 - degree, rows - len(kinds))
    means = np.array([np.bincount(codes, each) / counts for each in outcomes.numbers])
    squares = (outcomes.numbers**2).sum(axis=1)
    within = np.maximum(squares - (means**2 * counts).sum(axis=1), 0.0)
    left = _leave_by_polynomials(means, counts, degree)
    unexplained = np.flatnonzero(free.gain(left, within) > SMALLEST_GAIN)
    if not len(unexplained):
        return False
    for place in unexplained:
        left[place] = min(left[place], leave_by_shapes(means[place], counts))
    is_large = free.gain(left, within) > SMALLEST_GAIN
    is_improbable = free.p_value(left, within) * len(means) < LARGEST_P
    return bool((is_large & is_improbable).any())


@dataclass(frozen=True)
class _Freedom:
    """The degrees of freedom between values, without the curve's, and within them."""

    between: int
    within: int

    def gain(self, left: NDArray[np.float64], within: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of the variance around a curve that goes with a mean for each value."""
        around = (within + left) / (self.within + self.between)
        shares: NDArray[np.float64] = 1.0 - (within / self.within) / np.maximum(around, TINY)
        return shares

    def p_value(
        self, left: NDArray[np.float64], within: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how probable it is that a curve leaves so much of amounts (F test)."""
        from scipy.special import fdtrc  # imported late: few columns need it

        ratio = (left / self.between) / np.maximum(within / self.within, TINY)
        found: NDArray[np.float64] = fdtrc(self.between, self.within, ratio)
        return found


def _rank(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each number, the mean one of equal numbers."""
    _, codes, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2.0
    ranks: NDArray[np.float64] = middle[codes]
    return ranks


# Curves -------------------------------------------------------------------------------------------


def _leave_by_polynomials(
    means: NDArray[np.float64], counts: NDArray[np.int64], degree: int
) -> NDArray[np.float64]:
    """Return the squares that polynomials in the values' midranks leave, one of each outcome."""
    ranks = (np.cumsum(counts) - counts / 2.0) / counts.sum()
    weights = np.sqrt(counts)
    terms = np.polynomial.legendre.legvander(2.0 * ranks - 1.0, degree)
    basis, _ = np.linalg.qr(terms * weights[:, None])
    weighted = means * weights
    rest = weighted - (weighted @ basis) @ basis.T
    squares: NDArray[np.float64] = (rest**2).sum(axis=1)
    return squares


def leave_by_shapes(means: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """Return the least squares that a curve with at most one turn leaves, up or down at first."""
    both: list[float] = []
    for signed in (means, -means):
        up = _leave_by_rising(signed.tolist(), counts.tolist())
        down = _leave_by_rising(signed[::-1].tolist(), counts[::-1].tolist())
        together = np.array([0.0, *up]) + np.array([0.0, *down])[::-1]
        both.append(float(together.min()))
    return min(both)


def _leave_by_rising(means: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return the squares that a rising curve leaves of the first value, the first two, and so on.

    Neighbours that fall are pooled (PAVA); libraries fit all values only, which would take a fit
    for each turn.
    """
    pooled: list[tuple[float, float]] = []  # the mean and the rows of each level
    left: list[float] = []
    total = 0.0
    for mean, count in zip(means, counts, strict=True):
        level = mean
        rows = float(count)
        while pooled and pooled[-1][0] >= level:
            before, more = pooled.pop()
            total += rows * more / (rows + more) * (before - level) ** 2
            level = (rows * level + more * before) / (rows + more)
            rows += more
        pooled.append((level, rows))
        left.append(total)
    return left

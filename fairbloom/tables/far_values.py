"""Find numbers that lie apart from the rest of a column: an age of 300, or 9 on a scale of 1 to 5.

They may stand for a missing value. Heavy tails, as of CRP, stays or incomes, have no such gap.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Rows that show it.
FEWEST_ROWS = 20
FEWEST_BEYOND = 3

# A group of rows lies apart if it is beyond the rest by this many ranges of the rest, within this
# share of that range, and has from LEAST to MOST of all rows; the rest has ten different numbers.
RANGES = 1.5
TIGHT = 0.25
LEAST, MOST = 0.005, 0.2
FEWEST_KINDS = 10

# The rest goes up to this quantile of a sample at least.
SAMPLE = 1_000
INSIDE = 0.7

# A scale begins with 0 or 1 and has at least three whole numbers without a hole, each in this share
# of the rows; what follows a hole are codes, in this share of them.
MAX_KINDS = 13
FEWEST_STEPS = 3
OF_STEP = 0.01
LEAST_CODES, MOST_CODES = 0.01, 0.4
CODES = (7, 8, 9, 77, 88, 97, 98, 99)
THREE_DIGITS = 100


def find_beyond(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers of a group of rows that lies apart, ascending; none without one."""
    if len(numbers) >= FEWEST_ROWS:
        for sign in (1.0, -1.0):
            found = _find_above(sign * numbers)
            if len(found):
                return np.sort(sign * found)
    return np.empty(0)


def _find_above(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers of a group of rows above the rest."""
    least = numbers.min()
    inside = np.quantile(numbers[:: 1 + len(numbers) // SAMPLE], INSIDE)
    limit = least + (1.0 + RANGES) * (inside - least)  # what is below is too near to lie apart
    is_above = numbers > limit
    tail = np.sort(numbers[is_above])
    if not len(tail):
        return tail
    before = np.append(numbers[~is_above].max(), tail[:-1])
    ranges = before - least
    rows = len(tail) - np.arange(len(tail))
    is_apart = (tail - before > RANGES * ranges) & (tail[-1] - tail <= TIGHT * ranges)
    is_group = (rows >= max(FEWEST_BEYOND, LEAST * len(numbers))) & (rows <= MOST * len(numbers))
    starts = np.flatnonzero(is_apart & is_group)
    if not len(starts):
        return tail[:0]
    beyond = tail[starts[0] :]
    return beyond if len(np.unique(numbers[numbers < beyond[0]])) >= FEWEST_KINDS else tail[:0]


def find_codes_of_scale(numbers: NDArray[np.float64]) -> Iterator[tuple[float, int]]:
    """Yield the numbers after a hole in a scale of few whole numbers, with their rows."""
    if len(numbers) < FEWEST_ROWS or len(np.unique(numbers[:SAMPLE])) > MAX_KINDS:
        return
    if numbers.min() < 0.0 or numbers.max() > 999.0 or (numbers != np.round(numbers)).any():
        return
    counts = np.bincount(numbers.astype(np.int64))
    kinds = np.flatnonzero(counts)
    holes = np.flatnonzero(np.diff(kinds) > 1)
    if not len(holes) or len(kinds) > MAX_KINDS or kinds[0] > 1:
        return
    steps = kinds[: holes[0] + 1]
    codes = kinds[holes[0] + 1 :]
    rows = len(numbers)
    are_codes = all(code in CODES or code >= THREE_DIGITS for code in codes.tolist())
    are_steps = counts[steps].min() >= max(FEWEST_BEYOND, OF_STEP * rows)
    of_codes = int(counts[codes].sum())
    is_share = max(FEWEST_BEYOND, LEAST_CODES * rows) <= of_codes <= MOST_CODES * rows
    if are_codes and are_steps and is_share and len(steps) >= FEWEST_STEPS:
        for code in codes.tolist():
            yield float(code), int(counts[code])

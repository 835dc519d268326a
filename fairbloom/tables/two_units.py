"""Find columns in which a site's numbers are in two units."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .conversions import OF_FACTORS

# Rows that are looked at.
SAMPLE = 5_000

# Rows in each of two units that show it.
FEWEST_OF_UNIT = 10

# The logarithms of known ratios.
RATIOS = np.log([each.factor for each in OF_FACTORS])

# A ratio of medians is a known one if it is as many of its standard errors from it. With larger
# errors some known ratio is always near.
ERRORS = 2.5
LARGEST_ERROR = 0.2

# The standard error of a median, in standard deviations of the numbers' mean.
OF_MEDIAN = 1.2533

# Logarithms of clusters are at least so far apart.
SMALLEST = float(RATIOS.min())

# Share of the rows of one cluster with a category, beyond that of the other, from which the
# category tells them apart.
TOLD_APART = 0.9


class TwoUnits(NamedTuple):
    """The two units by a known conversion, and the rows in the smaller of the two clusters."""

    units: str
    rows: int


def find_two_units(
    numbers: NDArray[np.float64], categories: Sequence[NDArray[np.int64]]
) -> TwoUnits | None:
    """Return the units that a site's numbers, NaN for none, seem to be in; None if it is one.

    They have two clusters, which a known ratio makes alike. If one of the site's `categories`,
    indices of each row, tells the clusters apart, they may be honest.
    """
    positive = np.flatnonzero(numbers > 0.0)
    times = max(1.0, len(positive) / SAMPLE)
    if times > 1.0:  # drawn, as every second row may be in another unit
        positive = positive[np.random.default_rng(0).integers(0, len(positive), SAMPLE)]
    if len(positive) < 2 * FEWEST_OF_UNIT:
        return None
    logs = np.log(numbers[positive])
    if logs.max() - logs.min() < SMALLEST:
        return None
    ordered = np.sort(logs)
    gaps = np.diff(ordered)
    last = int(gaps.argmax())
    clusters = (ordered[: last + 1], ordered[last + 1 :])
    if min(len(np.unique(cluster)) for cluster in clusters) < FEWEST_OF_UNIT:
        return None
    spreads = [float(cluster.std()) for cluster in clusters]
    if not max(spreads) < min(gaps[last], 2.0 * min(spreads)):
        return None
    squares = [spread**2 / len(cluster) for spread, cluster in zip(spreads, clusters, strict=True)]
    error = OF_MEDIAN * float(np.sqrt(sum(squares)))
    apart = float(np.median(clusters[1]) - np.median(clusters[0]))
    distances = np.abs(RATIOS - apart)
    if error > LARGEST_ERROR or distances.min() > ERRORS * error:
        return None
    if any(_tell_apart(codes[positive], logs > ordered[last]) for codes in categories):
        return None
    known = OF_FACTORS[int(distances.argmin())]
    return TwoUnits(known.about, round(times * min(map(len, clusters))))


def _tell_apart(codes: NDArray[np.int64], is_high: NDArray[np.bool_]) -> bool:
    """Return whether the most frequent cluster of each category is that of nearly all rows."""
    counts = np.zeros((int(codes.max(initial=0)) + 2, 2), np.int64)
    np.add.at(counts, (codes + 1, is_high.astype(np.int64)), 1)
    right = counts.max(axis=1).sum() - counts.sum(axis=0).max()
    return bool(right >= TOLD_APART * counts.sum(axis=0).min())

"""Differences between two methods over seeds: their size, how sure it is, and how many seeds would detect it."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)

CONFIDENCE = 0.95
"""The share of intervals that hold the true difference."""

LEVEL = 1.0 - CONFIDENCE
"""The largest p-value, after Holm's correction, of a difference that counts as clear."""

FEWEST_SEEDS = 3
"""With fewer seeds nothing is tested, and differences have no interval: it would be wider than most scores' range."""


@dataclass(frozen=True)
class Difference:
    """How much better a method is than the baseline by one measure, from differences that are paired by seed.

    Attributes
    ----------
    mean
        The mean difference; positive is better, whatever the direction of the score.
    error
        Its standard error; NaN with fewer than three seeds.
    low, high
        Its 95 % interval; NaN with fewer than three seeds, or where all differences are the same.
    better, worse
        With how many seeds the method is better, and worse; with the others it is equal.
    seeds
        The number of seeds.
    p_value
        Two-sided, of the t test that there is no difference, after Holm's correction where several methods are compared
        with one baseline. It is 1 where nothing can be tested: with fewer than three seeds, or differences that do not
        vary.
    enough
        How many seeds would detect a difference of this size with a power of 80 %, at least three. None where no number
        of seeds would, because the seeds re-split the same examples or the difference is zero, and where nothing can be
        tested.
    """

    mean: float
    error: float
    low: float
    high: float
    better: int
    worse: int
    seeds: int
    p_value: float
    enough: int | None

    @property
    def clear(self) -> bool:
        """Whether the difference is clear: whether method and baseline differ significantly."""
        return self.p_value < LEVEL

    @property
    def zero(self) -> bool:
        """Whether method and baseline are equal with every seed."""
        return not (self.better or self.worse)

    def clipped(self, lowest: float, highest: float) -> "Difference":
        """Return the same difference with an interval that ends where the true difference can lie."""
        return replace(self, low=max(self.low, lowest), high=min(self.high, highest))  # NaN stays NaN


def difference_of(differences: Sequence[float], *, test_share: float = 0.0, methods: int = 1) -> Difference:
    """Return the mean of differences, one per seed, tested by the paired t test.

    `test_share` is the number of test examples divided by that of training examples where the seeds re-split one data
    set, else 0. Splits of one data set are not independent, so the variance of the mean is (1/n + test_share) s² in
    place of s²/n: Nadeau and Bengio, Inference for the Generalization Error, Machine Learning 52 (2003), equation 9.
    `methods` is the number of methods that are tested against the baseline, for `enough`.
    """
    x = _checked(differences, test_share)
    n, mean = x.size, float(x.mean())
    better, worse = int((x > 0.0).sum()), int((x < 0.0).sum())
    if n < FEWEST_SEEDS:
        return Difference(mean, math.nan, math.nan, math.nan, better, worse, n, 1.0, None)
    if _is_constant(x):
        # One value again and again does not say how others would scatter.
        return Difference(mean, 0.0, math.nan, math.nan, better, worse, n, 1.0, None)
    from scipy.stats import t

    spread = float(x.std(ddof=1))
    error = spread * math.sqrt(1.0 / n + test_share)
    reach = float(t.isf(LEVEL / 2.0, n - 1)) * error
    p_value = float(2.0 * t.sf(abs(mean) / error, n - 1))
    enough = seeds_that_tell(abs(mean) / spread, test_share=test_share, level=LEVEL / methods)
    return Difference(mean, error, mean - reach, mean + reach, better, worse, n, p_value, enough)


def differences_of(differences: Mapping[Key, Sequence[float]], *, test_share: float = 0.0) -> dict[Key, Difference]:
    """Return the difference of each of several methods to one baseline, with Holm's correction over those tested.

    A method that is equal to the baseline with every seed is not tested, so it costs the others no power.
    """
    tested = {method: each for method, each in differences.items() if any(each)}
    count = max(1, len(tested))
    found = {m: difference_of(each, test_share=test_share, methods=count) for m, each in differences.items()}
    corrected = correct_by_holm([found[method].p_value for method in tested])
    p_values = dict(zip(tested, corrected, strict=True))
    return {method: replace(each, p_value=p_values.get(method, 1.0)) for method, each in found.items()}


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction over all of them."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return [float(each) for each in corrected]


def prediction_interval(differences: Sequence[float], *, count: int, test_share: float = 0.0) -> tuple[float, float]:
    """Return the interval that holds the mean difference of `count` fresh seeds in 95 % of cases.

    It is NaN with a single seed. `test_share` is as in `difference_of`, for fresh seeds that bring fresh data; it is 0
    where they re-split the same data set.
    """
    x = _checked(differences, test_share)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if x.size == 1:
        return math.nan, math.nan
    mean = float(x.mean())
    if _is_constant(x):
        return mean, mean
    from scipy.stats import t

    scale = float(x.std(ddof=1)) * math.sqrt(1.0 / x.size + 1.0 / count + test_share)
    reach = float(t.isf(LEVEL / 2.0, x.size - 1)) * scale
    return mean - reach, mean + reach


def seeds_that_tell(effect: float, *, test_share: float = 0.0, level: float = LEVEL) -> int | None:
    """Return the smallest number of seeds, at least 3, with which the t test has a power of 80 %; None without one.

    `effect` is the mean difference divided by the standard deviation over seeds.
    """

    def tells(seeds: int) -> bool:
        # The t statistic has the mean effect / sqrt(1/n + test_share): that of n independent draws of a smaller effect.
        smaller = effect / math.sqrt(1.0 + seeds * test_share)
        # A difference that is clear with the wrong sign does not count, hence one side of the two-sided test.
        return power_of_t(smaller, seeds, level / 2.0) >= 0.8  # clear in 80 % of comparisons

    too_few, enough = FEWEST_SEEDS - 1, FEWEST_SEEDS
    while not tells(enough):
        if enough >= 2**30:  # not clear with any number of seeds
            return None
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if tells(middle) else (middle, enough)
    return enough


def power_of_t(effect: float, seeds: int, level: float) -> float:
    """Return how often the one-sided t test is below a level where the mean is `effect` standard deviations."""
    from scipy.special import nctdtr, stdtrit

    return 1.0 - float(nctdtr(seeds - 1, effect * math.sqrt(seeds), -stdtrit(seeds - 1, level)))


def _checked(differences: Sequence[float], test_share: float) -> NDArray[np.float64]:
    x = np.asarray(differences, np.float64)
    if not x.size or not np.isfinite(x).all():
        raise ValueError(f"there must be differences, all of them finite, got {list(differences)}")
    if not test_share >= 0.0:
        raise ValueError(f"test_share must be at least 0, got {test_share}")
    return x


def _is_constant(x: NDArray[np.float64]) -> bool:
    return bool(np.ptp(x) <= 1e-9 * np.abs(x).max() or x.std() == 0.0)

"""Differences between two methods over seeds: their size, and how sure it is."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)

CONFIDENCE = 0.95
"""The share of intervals that hold the true difference."""

LEVEL = 1.0 - CONFIDENCE
"""The largest p-value, after Holm's correction, of a significant difference."""

FEWEST_SEEDS = 3
"""With fewer seeds nothing is tested, and differences have no interval: it would be wider than most
scores' range."""


@dataclass(frozen=True)
class Difference:
    """How much better a method is than the baseline by one measure, from differences that are paired by seed.

    The p-value is two-sided, of the t test that there is no difference, after Holm's correction
    where several differences are tested. It is 1 where nothing can be tested: with fewer than three
    seeds, or differences that do not vary; and NaN where nothing is to be tested.
    """

    mean: float  # positive is better, whatever the direction of the score
    error: float  # the standard error; NaN with fewer than three seeds
    # of the 95 % interval; NaN with fewer than three seeds, or where all differences are the same
    low: float
    high: float
    better: int  # with how many seeds the method is better; with others it is worse, or equal
    worse: int
    seeds: int
    p_value: float

    @property
    def significant(self) -> bool:
        """Whether method and baseline differ significantly."""
        return self.p_value < LEVEL

    @property
    def is_zero(self) -> bool:
        """Whether method and baseline are equal with every seed."""
        return not (self.better or self.worse)

    @property
    def untested(self) -> "Difference":
        """The same difference without a p-value: it describes, and claims nothing."""
        return replace(self, p_value=math.nan)


def difference_of(differences: Sequence[float], *, test_share: float = 0.0) -> Difference:
    """Return the mean of differences, one per seed, tested by the paired t test.

    `test_share` is the number of test examples divided by that of training examples where the seeds
    re-split one data set, else 0. Splits of one data set are not independent, so the variance of
    the mean is (1/n + test_share) s² in place of s²/n: Nadeau and Bengio, Inference for the
    Generalization Error, Machine Learning 52 (2003), equation 9.
    """
    x = np.asarray(differences, np.float64)
    if not x.size or not np.isfinite(x).all():
        raise ValueError(f"there must be differences, all of them finite, got {list(differences)}")
    if not test_share >= 0.0:
        raise ValueError(f"test_share must be at least 0, got {test_share}")
    n = x.size
    mean = float(x.mean())
    better = int((x > 0.0).sum())
    worse = int((x < 0.0).sum())
    if n < FEWEST_SEEDS:
        return Difference(mean, math.nan, math.nan, math.nan, better, worse, n, 1.0)
    if np.ptp(x) <= 1e-9 * np.abs(x).max() or x.std() == 0.0:
        # One value again and again does not say how others would scatter.
        return Difference(mean, 0.0, math.nan, math.nan, better, worse, n, 1.0)
    from scipy.stats import t

    spread = float(x.std(ddof=1))
    error = spread * math.sqrt(1.0 / n + test_share)
    reach = float(t.isf(LEVEL / 2.0, n - 1)) * error
    p_value = float(2.0 * t.sf(abs(mean) / error, n - 1))
    return Difference(mean, error, mean - reach, mean + reach, better, worse, n, p_value)


def differences_of(
    differences: Mapping[Key, Sequence[float]], *, test_share: float = 0.0
) -> dict[Key, Difference]:
    """Return several differences to one baseline, with Holm's correction over those tested.

    What is equal to the baseline with every seed is not tested, so it costs the others no power.
    """
    tested = [key for key, each in differences.items() if any(each)]
    found = {key: difference_of(each, test_share=test_share) for key, each in differences.items()}
    corrected = correct_by_holm([found[key].p_value for key in tested])
    p_values = dict(zip(tested, corrected, strict=True))
    return {key: replace(each, p_value=p_values.get(key, 1.0)) for key, each in found.items()}


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction over all of them."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return [float(each) for each in corrected]

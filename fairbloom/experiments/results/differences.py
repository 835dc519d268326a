"""Differences between two methods over seeds, with their standard errors and p-values."""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairbloom.server.run_folder.files import NOT_IN_TRAINING

if TYPE_CHECKING:
    import pandas

Key = TypeVar("Key", bound=Hashable)

# The measures that sentences may claim by: the worst-served tenth under each method, the mean over
# all clients, and the mean over the clients that are not in training, where there are some.
WORST = "worst_10"
MEAN = "mean"
NEW_MEAN = f"{NOT_IN_TRAINING}: {MEAN}"
CLAIMED = (WORST, MEAN, NEW_MEAN)

# The share of intervals that hold the true difference.
CONFIDENCE = 0.95

# The largest p-value, after Holm's correction, of a significant difference.
LEVEL = 1.0 - CONFIDENCE

# With fewer seeds nothing is tested, and differences have no interval: it would be wider than the
# range of most scores.
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Difference:
    """A method's gain over the baseline by one measure, from differences paired by seed.

    The p-value is that of a two-sided t test for no difference, after Holm's correction if several
    differences are tested. It is 1 if no test is possible, with fewer than three seeds or with
    differences that do not vary, and NaN for a measure that is not tested.
    """

    mean: float  # positive is better, for any score
    error: float  # the standard error; NaN with fewer than three seeds
    # of the 95 % interval; NaN if all differences are the same or, but for noise, with fewer than
    # three seeds
    low: float
    high: float
    better: int  # the number of seeds in which the method is better
    worse: int
    seeds: int
    p_value: float

    @property
    def significant(self) -> bool:
        """Whether method and baseline differ significantly."""
        return self.p_value < LEVEL

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval, which has no correction for several tests, excludes zero."""
        return self.low > 0.0 or self.high < 0.0

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers by the columns of differences.csv, with None for a missing one."""
        return {key: None if value != value else value for key, value in asdict(self).items()}

    @property
    def untested(self) -> "Difference":
        """The same difference without a p-value: it describes and claims nothing."""
        return replace(self, p_value=math.nan)


def difference_of(
    differences: Sequence[float], *, test_share: float = 0.0, family: int = 1, shift: float = 0.0
) -> Difference:
    """Return the mean of differences, one per seed, tested by the paired t test.

    `family` is the number of intervals that hold together with 95 % (Bonferroni). `shift` is by how
    much noise may shift the mean: the interval is wider by it, and only what exceeds it is tested.
    With fewer than three seeds there is no interval but this.

    `test_share` is the ratio of test to training examples if the seeds re-split one data set,
    else 0. Splits of one data set are not independent, so the variance of the mean is
    (1/n + test_share) s² instead of s²/n: Nadeau and Bengio, Inference for the Generalization
    Error, Machine Learning 52 (2003), equation 9.
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
    error = math.nan
    p_value = 1.0
    if n < FEWEST_SEEDS:
        reach = shift or math.nan
    elif np.ptp(x) <= 1e-9 * np.abs(x).max() or x.std() == 0.0:
        # Equal values give no estimate of the variance.
        error = 0.0
        reach = math.nan
    else:
        from scipy.stats import t

        error = float(x.std(ddof=1)) * math.sqrt(1.0 / n + test_share)
        reach = float(t.isf(LEVEL / (2.0 * family), n - 1)) * error + shift
        p_value = float(2.0 * t.sf(max(0.0, abs(mean) - shift) / error, n - 1))
    return Difference(
        mean,
        error,
        low=mean - reach,
        high=mean + reach,
        better=better,
        worse=worse,
        seeds=n,
        p_value=p_value,
    )


def half_widths(
    spreads: "pandas.Series[float]", counts: "pandas.Series[int]", test_share: float
) -> "pandas.Series[float]":
    """Return half the widths of many intervals at once, from standard deviations and seeds.

    Those without an interval in `difference_of` are infinite.
    """
    from scipy.stats import t

    width = (
        t.isf(LEVEL / 2.0, (counts - 1).clip(lower=1))
        * spreads
        * ((1.0 / counts + test_share) ** 0.5)
    )
    return width.where((counts >= FEWEST_SEEDS) & (spreads > 0.0), math.inf)


def differences_of(
    differences: Mapping[Key, Sequence[float]],
    shifts: Mapping[Key, float],
    *,
    test_share: float = 0.0,
) -> dict[Key, Difference]:
    """Return several differences to one baseline, with Holm's correction over those tested.

    `shifts` are as in `difference_of`, by the same keys; a key without one has none.
    Methods that equal the baseline with every seed are not tested: they cost the others no power.
    """
    tested = [key for key, by_seed in differences.items() if any(by_seed)]
    found = {
        key: difference_of(by_seed, test_share=test_share, shift=shifts.get(key, 0.0))
        for key, by_seed in differences.items()
    }
    p_values = dict(
        zip(tested, correct_by_holm([found[key].p_value for key in tested]), strict=True)
    )
    return {
        key: replace(difference, p_value=p_values.get(key, 1.0))
        for key, difference in found.items()
    }


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction over all of them."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return [float(p_value) for p_value in corrected]


def mean_by_client(by_seed: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each client's mean over the seeds in which it has a number."""
    import pandas

    return dict(pandas.DataFrame([*by_seed]).mean())


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 of a single number."""
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0

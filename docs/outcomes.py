"""What many data sets say of a method: it differs from FedAvg, it is equivalent, or neither.

Each data set gives one number a method: its gain of the worst-served tenth over FedAvg, divided by
the gain that would matter on it (`bound_of`). A method *differs* if Wilcoxon's signed ranks say so,
and is *equivalent* if two one-sided tests (Schuirmann 1987) with signed ranks show that the gain is
above -1 and below +1; each with Holm's correction over methods. An equivalent method may differ.
All of it is about the middle of the gains: on single data sets they may be large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fairbloom.experiments.results.differences import correct_by_holm

LEVEL = 0.05

POINTS = 1.0
"""The bound of a percentage, in points."""

SHARE = 0.02
"""The bound of an error: this part of FedAvg's."""

Gains = Sequence[float] | NDArray[np.float64]
"""Gains of one method over FedAvg on each data set, in units of the bound."""


def bound_of(score: float, *, is_error: bool) -> float:
    """Return the gain over a score of FedAvg that would matter: of an error, or of a percentage."""
    return SHARE * score if is_error else POINTS


@dataclass(frozen=True)
class Outcome:
    """What the data sets say of one method.

    Attributes
    ----------
    estimate, low, high
        Hodges and Lehmann's estimate of the gain, in units of the bound, and its 90 % interval.
    differs, equivalent
        p-values with Holm's correction over methods.
    """

    estimate: float
    low: float
    high: float
    differs: float
    equivalent: float

    @property
    def words(self) -> str:
        """Which of the outcomes it is."""
        if self.differs < LEVEL:
            how = "better" if self.estimate > 0.0 else "worse"
            return f"{how}, by less than the bound" if self.equivalent < LEVEL else how
        return "equivalent" if self.equivalent < LEVEL else "neither"


def outcomes(gains: Mapping[str, Gains]) -> dict[str, Outcome]:
    """Return the outcome of each method, tested together."""
    differ = correct_by_holm([p_different(each) for each in gains.values()])
    alike = correct_by_holm([p_equivalent(each) for each in gains.values()])
    return {
        method: Outcome(*hodges_lehmann(each), differs, equivalent)
        for (method, each), differs, equivalent in zip(gains.items(), differ, alike, strict=True)
    }


def p_different(gains: Gains) -> float:
    """Return the p-value of Wilcoxon's signed ranks; 1 if no gain differs from 0."""
    return float(stats.wilcoxon(gains).pvalue) if np.any(gains) else 1.0


def p_equivalent(gains: Gains) -> float:
    """Return the larger p-value of the two one-sided tests against -1 and +1."""
    x = np.asarray(gains, np.float64)
    above = stats.wilcoxon(x + 1.0, alternative="greater").pvalue if np.any(x + 1.0) else 1.0
    below = stats.wilcoxon(x - 1.0, alternative="less").pvalue if np.any(x - 1.0) else 1.0
    return float(max(above, below))


def hodges_lehmann(gains: Gains, level: float = 0.9) -> tuple[float, float, float]:
    """Return the median of the Walsh averages, and the ends of its interval.

    The ends are those averages that the exact distribution of the signed-rank sum does not reject;
    infinite where there are too few data sets for the level.
    """
    x = np.asarray(gains, np.float64)
    i, j = np.triu_indices(x.size)
    walsh = np.sort((x[i] + x[j]) / 2.0)
    cumulative = np.cumsum(signed_rank_probabilities(x.size))
    cut = int(np.searchsorted(cumulative, (1.0 - level) / 2.0, side="right"))
    if cut == 0:
        return float(np.median(walsh)), -np.inf, np.inf
    return float(np.median(walsh)), float(walsh[cut - 1]), float(walsh[-cut])


def signed_rank_probabilities(n: int) -> NDArray[np.float64]:
    """Return the probability of each sum of positive ranks, 0 to n(n + 1)/2, if signs are fair."""
    found = np.ones(1)
    for rank in range(1, n + 1):
        found = np.convolve(found, [0.5, *[0.0] * (rank - 1), 0.5])
    return found


def power(
    gains: Mapping[str, Gains], data_sets: int, draws: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return how often so many data sets like the given ones show (a difference, equivalence).

    Data sets are drawn with replacement, the same ones for all methods.
    """
    random = np.random.default_rng(seed)
    columns = np.array([*gains.values()])
    found = np.zeros((len(gains), 2))
    for _ in range(draws):
        drawn = columns[:, random.integers(0, columns.shape[1], data_sets)]
        each = outcomes(dict(zip(gains, drawn, strict=True)))
        found += [[o.differs < LEVEL, o.equivalent < LEVEL] for o in each.values()]
    return {m: (float(a), float(b)) for m, (a, b) in zip(gains, found / draws, strict=True)}

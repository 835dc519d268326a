"""The variance of losses as a penalty."""

from typing import ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative

from .strategy import FairStrategy, Tries

# The metric with the largest beta with which no weight is negative.
LARGEST_BETA = "largest-beta"

# The paper's grid, appendix B.2.
GRID: Tries = {"beta": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)}


class VRed(FairStrategy):
    r"""VRed: descends the mean loss plus β times the variance of losses over clients.

    .. math:: c_k = p_k \big(1 + 2 \beta (F_k - \bar f)\big), \qquad \bar f = \sum_j p_j F_j

    The weights sum to 1; for a large beta some are negative, and are used unchanged:
    `negative-weights` counts them, and `largest-beta` is the largest β without any.

    Source: Malekmohammadi and Yu, Semi-Variance Reduction for Fair Federated Learning, 2024,
    Algorithm 1, doi:10.48550/arXiv.2406.16193.

    Parameters
    ----------
    beta
        Weight of the variance.

    Reductions: `beta=0` is FedAvg.

    Objective: the mean loss and β times the variance
    Good for: making losses equal, with a penalty that is easy to interpret.
    Hurts when: a loss is more than 1/(2β) below the mean: its weight is negative, and the step
    raises that loss.
    Memory: none
    Cost: a weighted sum
    """

    tries: ClassVar[Tries] = GRID
    needs = frozenset({"loss-before"})
    reports = (NEGATIVE_WEIGHTS, LARGEST_BETA)

    def __init__(self, *, beta: NonNegative = 0.5, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.beta = beta

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior, moved by how far each client's loss is above the mean loss."""
        return cohort.prior * (1.0 + 2.0 * self.beta * self.deviation(cohort))

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the number of negative weights, and the largest beta without any."""
        found = super().own_metrics(cohort, coefficients)
        lowest = float(self.deviation(cohort).min())
        if lowest < 0.0:
            found[LARGEST_BETA] = -0.5 / lowest
        return found

    def deviation(self, cohort: Cohort) -> FloatArray:
        """Return F_k − f̄, shape (m,)."""
        return above_mean(cohort.losses, cohort.prior)


class SemiVRed(VRed):
    r"""Semi-VRed: descends the mean loss plus β times the variance of the losses above the mean.

    .. math:: c_k = p_k \big(1 + 2 \beta ((F_k - \bar f)_+ - s)\big), \qquad
        s = \sum_j p_j (F_j - \bar f)_+

    Losses below the mean are not raised to it. The weights sum to 1; `negative-weights` counts
    negative ones.

    Source: Malekmohammadi and Yu, Semi-Variance Reduction for Fair Federated Learning, 2024,
    Algorithm 1, doi:10.48550/arXiv.2406.16193.

    Parameters
    ----------
    beta
        Weight of the semi-variance.

    Reductions: `beta=0` is FedAvg.

    Objective: the mean loss and β times the semi-variance
    Good for: helping neglected clients without making well-served ones worse just to make losses
    equal.
    Hurts when: losses are far apart: for β s above 1/2, the weights of all clients below the mean
    are negative.
    Memory: none
    Cost: a weighted sum
    """

    tries: ClassVar[Tries] = GRID

    def deviation(self, cohort: Cohort) -> FloatArray:
        """Return (F_k − f̄)_+ minus its mean, shape (m,)."""
        return above_mean(np.maximum(super().deviation(cohort), 0.0), cohort.prior)


def above_mean(values: FloatArray, prior: FloatArray) -> FloatArray:
    """Return how far each value is above the mean, weighted by the prior, shape (m,)."""
    return values - prior @ values

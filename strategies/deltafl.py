"""The superquantile: the mean of the tail of high losses."""

from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray, Options
from fairbloom.rounds.ranges import Range

from .strategy import FairStrategy, Tries


class DeltaFL(FairStrategy):
    r"""Δ-FL: only the clients in the tail of high losses count.

    .. math:: c_k = \frac{p_k [F_k \ge Q]}{\sum_j p_j [F_j \ge Q]}, \qquad
        Q = \min \Big\{F_i : \sum_{F_k \le F_i} p_k \ge 1 - \theta \Big\}

    Source: Pillutla et al., Federated Learning with Superquantile Aggregation for Heterogeneous
    Data, 2021, Algorithm 1, doi:10.48550/arXiv.2112.09429.

    Parameters
    ----------
    theta
        Share of the clients, by their prior, in the tail.

    Reductions: `theta=1` is FedAvg; towards 0, only the worst client counts.

    Objective: the mean loss of the worst share θ
    Good for: an objective that is easy to state: the mean loss of the worst-off share of the
    clients, not of a single one.
    Hurts when: few clients take part in a round: one or two determine the whole step, and the work
    of the others is unused.
    Memory: none
    Cost: a sort and a weighted sum
    """

    # Malekmohammadi and Yu (Semi-VRed), appendix B.2.
    tries: ClassVar[Tries] = {"theta": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}
    needs = frozenset({"loss-before"})
    sums = True

    def __init__(
        self, *, theta: Annotated[float, Range("(0, 1]")] = 0.5, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.theta = theta

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior of the tail."""
        F = cohort.losses
        p = cohort.prior
        ascending = np.argsort(F, kind="stable")
        # 1e-9 below, because rounding of the sum must not decide when it equals 1 − theta
        reached = np.cumsum(p[ascending]) >= 1.0 - self.theta - 1e-9
        Q = F[ascending][reached].min()
        c = np.where(F >= Q, p, 0.0)
        return np.asarray(c / c.sum())

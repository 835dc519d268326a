"""The average of clients whose losses are regularised so that they agree with the mean loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

import numpy as np

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, FloatArray, Kept, Options, Probed
from fairbloom.rounds.ranges import Positive

from .strategy import FairStrategy


class FedDyn(FairStrategy):
    r"""FedDyn: clients whose loss has a linear term, which they keep, and a proximal one.

    .. math:: \min_x F_k(x) - \langle h_k, x \rangle + \tfrac{\alpha}{2} \lVert x - w \rVert^2, \qquad
        h_k \leftarrow h_k + \alpha u_k

    .. math:: R \leftarrow R + \sum_k u_k, \qquad
        w \leftarrow w - \frac1m \sum_k u_k - \frac1N R

    for N clients that the server has known up to now, also absent ones. h_k, at first zero, is what
    the client keeps: where rounds come to rest, it is its gradient there. The resting point is the
    minimum of the mean loss, whatever the number of local steps.

    Source: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1,
    doi:10.48550/arXiv.2111.04263.

    Parameters
    ----------
    alpha
        Strength of the regularizer, α: small ones leave clients far to go, large ones hold them
        near w.

    Reductions: the first round in which all take part is a step twice as long as FedAvg's with
    uniform weights.

    Departures: none from the paper. The authors' code can weigh alpha by numbers of examples, which
    minimises another mean; that is not offered.

    Objective: the mean loss over clients
    Good for: many local steps on unlike data, with clients that come again.
    Hurts when: alpha is far from the curvature of the losses: small ones make training unsteady,
    large ones slow. A device that loses what it keeps makes all begin anew.
    Memory: the sum of all updates
    Cost: a weighted sum
    """

    tries = ()
    default_weighting = None
    requires = frozenset({"roster", "one momentum", "whole updates"})

    def __init__(self, *, alpha: Positive = 0.01, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.alpha = alpha

    def terms(self, server_round: int) -> Terms:
        """Return the strength of the regularizer with the common terms."""
        return replace(super().terms(server_round), dynamic_alpha=self.alpha)

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return 1/m + 1/N for each update, and 1/N for R."""
        of_total = np.full(cohort.size + len(cohort.memory), 1.0 / len(cohort.roster))
        of_total[: cohort.size] += 1.0 / cohort.size
        return of_total

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        """Keep R + Σ u_k."""
        return {Kept("total", cohort.round): np.ones_like(coefficients)}

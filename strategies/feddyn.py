"""The average of clients with losses that are regularised to agree with the mean loss."""

from dataclasses import replace
from typing import ClassVar, Unpack

import numpy as np

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, Decision, Kept, Options
from fairbloom.rounds.ranges import Positive

from .strategy import FairStrategy, Tries


class FedDyn(FairStrategy):
    r"""FedDyn: the clients' loss has a proximal term, and a linear one that they keep.

    .. math:: \min_x F_k(x) - \langle h_k, x \rangle
        + \tfrac{\alpha}{2} \lVert x - w \rVert^2, \qquad
        h_k \leftarrow h_k + \alpha u_k

    .. math:: R \leftarrow R + \sum_k u_k, \qquad
        w \leftarrow w - \frac1m \sum_k u_k - \frac1N R

    for the N clients that the server knows, online or not. The client keeps h_k, which starts at
    zero and converges to its gradient at the fixed point of the rounds. For any number of local
    steps, the fixed point is the minimum of the mean loss.

    Source: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1,
    doi:10.48550/arXiv.2111.04263.

    Parameters
    ----------
    alpha
        Strength α of the regularizer: a small one lets clients move far, a large one holds them
        near w.

    Reductions: the first round in which all take part is a step twice as long as FedAvg's with
    uniform weights.

    Departures: none from the paper. The authors' code can weigh alpha by numbers of examples, which
    minimises another mean; that option is omitted.

    Objective: the mean loss over clients
    Good for: many local steps on different data, with clients that take part often.
    Hurts when: alpha is far from the curvature of the losses: a small one makes training unstable,
    a large one slow. If a device loses its state, all clients begin again.
    Memory: the sum of all updates
    Cost: a weighted sum
    """

    tries: ClassVar[Tries] = {"alpha": (0.001, 0.01, 0.1)}
    default_weighting = None
    requires = frozenset({"roster", "one momentum", "whole updates"})

    def __init__(self, *, alpha: Positive = 0.01, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.alpha = alpha

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with the strength of the regularizer."""
        return replace(super().terms(server_round), dynamic_alpha=self.alpha)

    def weigh(self, cohort: Cohort) -> Decision:
        """Return 1/m + 1/N for each update, and 1/N for R; keep R + Σ u_k."""
        of_total = np.full(cohort.size + len(cohort.memory), 1.0 / len(cohort.roster))
        of_total[: cohort.size] += 1.0 / cohort.size
        return Decision(of_total, keep={Kept("total", cohort.round): np.ones_like(of_total)})

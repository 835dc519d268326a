"""q-fair federated learning: clients with a high loss count more."""

from dataclasses import replace
from typing import ClassVar, Unpack

import numpy as np

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import LARGEST_COEFFICIENT, Cohort, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative, Positive

from .strategy import FairStrategy, Tries

# Losses are raised to this before a power is taken.
SMALLEST_LOSS = 1e-10

# The grid of Hu et al. (FedMGDA+), Table 5, and the q of Wang et al. (FedFV), Table 1.
GRID: Tries = {
    "q": (0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0),
    "lipschitz": (0.1, 1.0, 10.0),
}


class QFedAvg(FairStrategy):
    r"""q-FedAvg: descends the sum of F_k^(q+1) with a step from an estimated Lipschitz constant.

    .. math:: c_k = \frac{L F_k^q}{\sum_j h_j}, \qquad
        h_j = q F_j^{q-1} L^2 \lVert u_j \rVert^2 + L F_j^q

    With `draw="examples"`, as in the paper, a client counts in both sums as often as it was drawn.

    Source: Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2,
    doi:10.48550/arXiv.1905.10497.

    Parameters
    ----------
    q
        How much high losses count: 0 not at all; for large values, only the worst client counts.
    lipschitz
        Estimate L of the gradients' Lipschitz constant; for q > 0, a larger L makes steps shorter.

    Reductions: `q=0` is FedAvg with uniform weights, whatever L is.

    Departures: F is floored at 1e-10, because F^(q−1) is undefined at F = 0 for q < 1. L is 1 by
    default, and not 1 / local learning rate: the paper tunes that for q = 0, and for q > 0 it makes
    steps short.

    Objective: Σ F^(q+1)
    Good for: any compromise between the mean (q = 0) and the worst client (large q).
    Hurts when: a client's loss is high because its labels are noisy: no model lowers it, and this
    client dominates. Steps become short for a large q, because h grows with q.
    Memory: none
    Cost: norms and a weighted sum
    """

    tries: ClassVar[Tries] = GRID
    needs = frozenset({"loss-before"})
    default_weighting = None
    drawn_by_examples = True
    lost_to_server_optimizers = (
        "the length of its step follows from the estimated Lipschitz constant"
    )

    def __init__(
        self, *, q: NonNegative = 5.0, lipschitz: Positive = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.q = q
        self.lipschitz = lipschitz

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return c of the gradients L u_k."""
        L = self.lipschitz
        return L * _weights(cohort, L**2 * cohort.squared_norms, self.q, L)


class QFedSGD(QFedAvg):
    r"""q-FedSGD: one full-batch step per client, so that the step uses the exact gradients.

    .. math:: c_k = \frac{F_k^q / \eta_k}{\sum_j h_j}, \qquad
        h_j = q F_j^{q-1} \lVert \nabla F_j \rVert^2 + L F_j^q, \qquad u_k = \eta_k \nabla F_k(w)

    with η_k the local learning rate, which the clients report. With `draw="examples"`, as in the
    paper, a client counts in both sums as often as it was drawn.

    Source: Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 1,
    doi:10.48550/arXiv.1905.10497.

    Parameters
    ----------
    q
        How much high losses count: 0 not at all; for large values, only the worst client counts.
    lipschitz
        Estimate L of the gradients' Lipschitz constant; the step is at most 1/L of their mean.

    Reductions: `q=0` is gradient descent on the unweighted mean loss with step 1/L.

    Departures: F is floored at 1e-10, because F^(q−1) is undefined at F = 0 for q < 1.

    Objective: Σ F^(q+1)
    Good for: the exact gradient of q-FFL's objective, without the effect of many local steps.
    Hurts when: messages are costly: a whole round is one gradient step, over all of a client's
    examples at once.
    Memory: none
    Cost: norms and a weighted sum
    """

    tries: ClassVar[Tries] = GRID
    needs = frozenset({"loss-before", "learning-rate"})
    requires = frozenset({"plain sgd"})

    def __init__(
        self, *, q: NonNegative = 1.0, lipschitz: Positive = 10.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(q=q, lipschitz=lipschitz, **options)

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with exactly one full-batch step per client."""
        return replace(super().terms(server_round), full_batch_step=True)

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return c of the gradients u_k / η_k."""
        eta = cohort.metrics["learning-rate"]
        with np.errstate(over="ignore"):
            squares = np.minimum(
                (np.sqrt(cohort.squared_norms) / eta) ** 2, np.finfo(np.float64).max
            )
            return np.minimum(
                _weights(cohort, squares, self.q, self.lipschitz) / eta, LARGEST_COEFFICIENT
            )


def _weights(cohort: Cohort, squared_norms: FloatArray, q: float, L: float) -> FloatArray:
    """Return d F^q / Σ d h, with d the draws and h = q F^(q−1) ‖g‖² + L F^q."""
    F = np.maximum(cohort.losses, SMALLEST_LOSS)
    Fq = (F / float(F.max())) ** q  # the factor cancels, and the power cannot overflow
    h = L * Fq
    if q > 0.0:
        h = h + q * Fq / F * squared_norms
    return np.asarray(cohort.draws * Fq / (cohort.draws @ h))

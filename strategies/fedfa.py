"""Fairness by accuracy and participation, with momentum on both sides."""

from dataclasses import replace
from typing import Annotated, Unpack

import numpy as np

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, Decision, FloatArray, Kept, Options
from fairbloom.rounds.ranges import NonNegative, Range

from .strategy import FairStrategy

# Accuracies are raised to this before their logarithm is taken.
SMALLEST_ACCURACY = 1e-6


class FedFa(FairStrategy):
    r"""FedFa: clients with a low accuracy, or with many participations, count more.

    .. math:: c_k \propto \alpha \hat a_k + \beta \hat f_k, \qquad
        a_k = -\log_2 \frac{A_k}{\sum_j A_j}, \quad
        f_k = -\log_2 \Big(1 - \frac{n_k}{\sum_j n_j}\Big)

    with A_k the accuracy after local work, n_k the number of rounds in which the client took part,
    and â, f̂ normalised to sum 1; then v ← μ v + Σ c_k u_k and w ← w − v.

    Source: Huang et al., Fairness and Accuracy in Federated Learning, 2020, Algorithm 1,
    doi:10.48550/arXiv.2012.10069.

    Parameters
    ----------
    alpha
        Weight of the accuracy; alpha + beta must be above 0.
    beta
        Weight of the participation.
    server_momentum
        Momentum μ of the server's step.
    client_momentum
        Momentum of the clients' SGD, which starts at zero in every round.

    Departures: A is at least 1e-6, and a single client, for which f is undefined, gets weight 1.

    Objective: none; weights follow accuracy and participation
    Good for: classification with even participation; momentum on both sides makes training fast.
    Hurts when: some clients participate rarely, because they then count less. Noisy labels also
    lower the accuracy, and raise the weight.
    Memory: one velocity, and one number per client
    Cost: a weighted sum
    """

    needs = frozenset({"accuracy-after"})
    default_weighting = None
    requires = frozenset({"one momentum"})

    def __init__(
        self,
        *,
        alpha: NonNegative = 0.5,
        beta: NonNegative = 0.5,
        server_momentum: Annotated[float, Range("[0, 1)")] = 0.5,
        client_momentum: Annotated[float, Range("[0, 1)")] = 0.9,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.alpha = alpha
        self.beta = beta
        if self.alpha + self.beta == 0.0:
            raise ValueError(
                f"alpha + beta must be greater than 0, got alpha = {alpha!r} and beta = {beta!r}"
            )
        self.server_momentum = server_momentum
        self.client_momentum = client_momentum

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with the clients' momentum."""
        return replace(super().terms(server_round), client_momentum=self.client_momentum)

    def weigh(self, cohort: Cohort) -> Decision:
        """Return c, and the server's momentum for the velocity, if there is one.

        The participants' rounds are counted, and the step is kept as the velocity.
        """
        rounds = cohort.past.memory.get("rounds", {})
        counted = {name: int(rounds.get(name, 0)) + 1 for name in cohort.names}
        n = np.array([*counted.values()], np.float64)
        c = np.concatenate(
            [self._shares(cohort, n), np.full(len(cohort.memory), self.server_momentum)]
        )
        return Decision(c, {"rounds": {**rounds, **counted}}, {Kept("velocity", cohort.round): c})

    def _shares(self, cohort: Cohort, n: FloatArray) -> FloatArray:
        """Return the shares of the updates, of clients with n rounds up to this one."""
        if cohort.size == 1:
            return np.ones(1)
        A = np.maximum(cohort.metrics["accuracy-after"], SMALLEST_ACCURACY)
        a = -np.log2(A / A.sum())
        f = -np.log2(1.0 - n / n.sum())
        c = self.alpha * a / a.sum() + self.beta * f / f.sum()
        return np.asarray(c / c.sum())

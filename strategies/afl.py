"""Minimax fairness: a weight for every client, ascended by its loss."""

from collections.abc import Mapping
from typing import ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, Decision, Options
from fairbloom.rounds.ranges import NonNegative

from .simplex import project
from .strategy import FairStrategy, Tries

# Larger gains are clipped to this, because the projection computes differences.
LARGEST_GAIN = 1e300


class AFL(FairStrategy):
    r"""AFL: descends the worst mixture of losses, found by ascent on the weights.

    .. math:: c_k = \frac{\lambda_k}{\sum_{j \in S} \lambda_j}, \qquad
        \lambda \leftarrow \Pi_\Delta(\lambda + \gamma F_S)

    λ has a weight for every client that ever sent a usable reply, and starts at their prior. A
    newcomer enters with its prior, and the others' weights shrink. Π is the Euclidean projection on
    the simplex.

    Source: Mohri et al., Agnostic Federated Learning, ICML 2019, Stochastic-AFL,
    doi:10.48550/arXiv.1902.00146.

    Parameters
    ----------
    gamma
        Step size of the ascent on the weights.

    Reductions: `gamma=0` is FedAvg.

    Departures: only some of the clients take part in a round; if λ has no mass on them, they are
    weighted by the prior. Of clients drawn by their examples, λ_k is multiplied by the number of
    draws and divided by the number of examples.

    Objective: the worst mixture of losses
    Good for: few clients that take part often; the result holds for every mixture of them.
    Hurts when: few of many clients take part in a round, because λ is then out of date; or one
    client's labels are noisy: λ settles on it, and the others pay.
    Memory: two numbers per client
    Cost: a weighted sum and a sort
    """

    # Hu et al. (FedMGDA+), Table 5.
    tries: ClassVar[Tries] = {"gamma": (0.01, 0.1, 0.2, 0.5)}
    needs = frozenset({"loss-before"})
    sums = True

    def __init__(self, *, gamma: NonNegative = 0.1, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.gamma = gamma

    def weigh(self, cohort: Cohort) -> Decision:
        """Return λ on the participants, renormalised; λ then ascends by their losses."""
        past = cohort.past.memory
        examples = {
            **past.get("examples", {}),
            **dict(zip(cohort.names, cohort.counts.tolist(), strict=True)),
        }
        shares = self.prior_weights_of([*examples], [*examples.values()]).tolist()
        weights = enter_clients(past.get("weights", {}), dict(zip(examples, shares, strict=True)))
        c = np.array([weights[name] for name in cohort.names])
        if self.draw == "examples":
            # a client's share of the draws has its examples already: the mean weight is λ
            c = c * cohort.draws / cohort.counts
        total = c.sum()
        with np.errstate(over="ignore"):
            gains = dict(zip(cohort.names, (self.gamma * cohort.losses).tolist(), strict=True))
        return Decision(
            np.asarray(c / total) if total > 0.0 else cohort.prior,
            {"weights": ascend(weights, gains), "examples": examples},
        )


def enter_clients(weights: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, float]:
    """Return `weights` with newcomers at their part of all `shares`; the others shrink."""
    total = sum(shares.values())
    newcomers = {name: share / total for name, share in shares.items() if name not in weights}
    room = 1.0 - sum(newcomers.values())
    return {name: room * weight for name, weight in weights.items()} | newcomers


def ascend(weights: Mapping[str, float], gains: Mapping[str, float]) -> dict[str, float]:
    """Return the projection of `weights` plus `gains` on the simplex, in the order of names."""
    names = sorted(weights)
    clipped = np.clip([gains.get(name, 0.0) for name in names], -LARGEST_GAIN, LARGEST_GAIN)
    moved = np.array([weights[name] for name in names]) + clipped
    projected = project(moved)
    return dict(zip(names, projected.tolist(), strict=True))

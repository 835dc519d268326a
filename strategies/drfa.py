"""Minimax fairness by sampling: clients with a high loss are drawn more often."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np

from fairbloom.protocol.names import SNAPSHOT
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, FloatArray, Options, Past, Probed
from fairbloom.rounds.ranges import NonNegative, Range
from fairbloom.rounds.sampling import sample_by

from .afl import ascend, enter_clients
from .strategy import FairStrategy, Tries


class DRFA(FairStrategy):
    r"""DRFA: clients are drawn by weights that rise with their losses.

    .. math:: c_k = \frac1m, \quad k \sim \lambda \text{ with replacement}, \qquad
        \lambda \leftarrow \Pi_\Delta(\lambda + K \gamma v), \qquad v_i = \frac Nm F_i(\bar w)

    w̄ is the mean of the clients' models at a random one of their K local steps; a second sample of
    m clients, drawn uniformly of the N online, reports its loss there.

    Source: Deng et al., Distributionally Robust Federated Averaging, NeurIPS 2020, Algorithm 1,
    doi:10.48550/arXiv.2102.12660.

    Parameters
    ----------
    gamma
        Step size of the ascent on the weights.
    local_steps
        Number K of steps that every client takes in a round, instead of epochs.

    Reductions: `gamma=0` is FedAvg with uniform weights over clients drawn with replacement.

    Objective: the worst mixture of losses
    Good for: AFL's objective when only some of many clients work in a round.
    Hurts when: messages are slow, because each round has a second exchange; or `gamma` is large:
    draws then swing between few clients.
    Memory: one number per client
    Cost: two weighted sums and a second exchange
    """

    tries: ClassVar[Tries] = {"gamma": (0.01, 0.1)}
    needs = frozenset()
    default_weighting = None
    second = SNAPSHOT

    def __init__(
        self,
        *,
        gamma: NonNegative = 0.01,
        local_steps: Annotated[int, Range("[1, inf)")] = 10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.local_steps = local_steps

    def terms(self, server_round: int) -> Terms:
        """Return the common terms with the steps, and the step of the snapshot.

        The latter is drawn from (seed, round).
        """
        step = int(generator(self.seed, "snapshot", server_round).integers(1, self.local_steps + 1))
        return replace(
            super().terms(server_round), local_steps=self.local_steps, snapshot_step=step
        )

    def choose(self, names: Collection[str], wanted: int, server_round: int) -> list[str]:
        """Draw clients by λ, with replacement."""
        weights = weights_of(self.past, names)
        ascending = sorted(names)
        shares = np.array([weights[name] for name in ascending])
        if shares.sum() <= 0.0:
            shares = np.ones(len(ascending))
        return sample_by(
            shares, ascending, wanted, generator(self.seed, "weighted draw", server_round)
        )

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return each client's share of the draws."""
        return np.asarray(cohort.draws / cohort.draws.sum())

    def probe(self, cohort: Cohort, coefficients: FloatArray) -> FloatArray | None:
        """Return the coefficients of the mean snapshot, at which clients report their loss."""
        return coefficients

    def learn(self, past: Past, cohort: Cohort, probed: Probed) -> Mapping[str, Any]:
        """Ascend λ by the losses of a uniform sample at the mean snapshot."""
        factor = self.local_steps * self.gamma * len(cohort.online) / max(len(probed), 1)
        gains = {name: factor * loss for name, loss in probed.items()}
        return {"weights": ascend(weights_of(past, cohort.online), gains)}


def weights_of(past: Past, names: Collection[str]) -> dict[str, float]:
    """Return λ of all clients known so far and of newcomers."""
    known = past.memory.get("weights", {})
    return enter_clients(known, dict.fromkeys([*known, *sorted(names)], 1.0))

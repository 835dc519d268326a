"""The plain average of clients whose steps are corrected for what is peculiar to their data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

import numpy as np

from fairbloom.protocol.names import CONTROL, STEP_SUM
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, FloatArray, Kept, Options, Probed
from fairbloom.rounds.ranges import Positive

from .strategy import FairStrategy


class SCAFFOLD(FairStrategy):
    r"""SCAFFOLD: FedAvg of clients that correct each local step by control variates.

    .. math:: y \leftarrow y - \eta_s \big(g_k(y) - c_k + c\big), \qquad
        c_k^+ = c_k - c + \frac{u_k}{H_k}

    .. math:: w \leftarrow w - \eta_g \sum_k p_k u_k, \qquad
        C \leftarrow C + \sum_k n_k \Big(\frac{u_k}{H_k} - c\Big)

    with g_k a client's gradient, H_k the sum of its steps' learning rates η_s, and η_g the server's. At first zero, c_k
    is what a client keeps: an estimate of its gradient. c = C / Σ n_k, summed over all clients that the server has
    known, is the mean of these estimates by weight, and is sent with the model. So clients that take many steps do not
    drift to optima of their own, and rounds come to rest at the minimum of Σ p_k F_k.

    Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
    Algorithm 1, option II, doi:10.48550/arXiv.1910.06378.

    Parameters
    ----------
    server_lr
        Learning rate η_g of the server.

    Reductions: the first round with `server_lr=1` is FedAvg's.

    Departures: c is the mean over all clients that the server has known, by examples where these weigh the updates, and
    kept as a sum, so that it stays right while clients join; H takes the place of K η, since learning rates may change
    and clients may take unequal numbers of steps. A client that took no step keeps its control variate.

    Objective: the mean loss
    Good for: many local steps on unlike data, where FedAvg's clients drift apart, with clients that come again.
    Hurts when: most clients come once or rarely, since their control variates are then old; or when a device loses what
    it keeps, since all begin anew then.
    Memory: one control variate
    Cost: a weighted sum; a second model to each client
    """

    tries = ()
    needs = frozenset({STEP_SUM})
    requires = frozenset({"roster", "whole updates"})

    def __init__(self, *, server_lr: Positive = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.server_lr = server_lr

    def terms(self, server_round: int) -> Terms:
        """Return that clients correct their steps by control variates."""
        return replace(super().terms(server_round), control_variates=True)

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior times the server's learning rate; the control variate is no part of the step."""
        return self.server_lr * np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        """Return the server's control variate c = C / Σ n_k, over the roster, once there is one."""
        kept = next(iter(self.progress.kept), None)
        if kept is None:
            return {}
        return {CONTROL: (kept, 1.0 / sum(self._size(n) for n in self.progress.roster.values()))}

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        """Keep C + Σ n_k (u_k / H_k − c), over the clients that took a step, with c as it was sent."""
        H = cohort.metrics[STEP_SUM]
        n = np.array([self._size(cohort.roster[name]) for name in cohort.names]) * (H > 0.0)
        changed = np.divide(n, H, out=np.zeros_like(n), where=H > 0.0)
        left = 1.0 - n.sum() * cohort.sent.get(CONTROL, 0.0)
        return {Kept(CONTROL, cohort.round): np.concatenate([changed, np.full(len(cohort.memory), left)])}

    def _size(self, examples: float) -> float:
        """Return n_k as the control variates are weighted by it: 1 where the prior is uniform."""
        return examples if self.weighting == "examples" else 1.0

"""The plain average of clients that correct their steps by control variates."""

from typing import Unpack

import numpy as np

from fairbloom.protocol.names import STEP_SUM
from fairbloom.rounds.method import Cohort, Decision, Options
from fairbloom.rounds.ranges import Positive

from .fedavg import FedAvg


class SCAFFOLD(FedAvg):
    r"""SCAFFOLD: FedAvg of clients that correct each local step by control variates.

    .. math:: y \leftarrow y - \eta_s \big(g_k(y) - c_k + c\big), \qquad
        c_k^+ = c_k - c + \frac{u_k}{H_k}

    .. math:: w \leftarrow w - \eta_g \sum_k p_k u_k, \qquad
        C \leftarrow C + \sum_k n_k \Big(\frac{u_k}{H_k} - c\Big)

    with g_k a client's gradient, H_k the sum of its steps' learning rates η_s, and η_g the server's
    learning rate. A client keeps c_k, an estimate of its gradient that starts at zero. c = C / Σ
    n_k, over all clients that the server knows, is the weighted mean of these estimates, and is
    sent with the model. So clients that take many steps do not drift to their own optima, and the
    rounds converge to the minimum of Σ p_k F_k.

    Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    ICML 2020, Algorithm 1, option II, doi:10.48550/arXiv.1910.06378.

    Parameters
    ----------
    server_lr
        Learning rate η_g of the server.

    Reductions: the first round with `server_lr=1` is FedAvg's; `server_lr=1` is FedAvg with
    `control_variates=True`.

    Departures: c is the mean over all clients that the server knows, weighted by examples if the
    updates are. It is kept as a sum, so that it stays right while clients join. H replaces K η,
    because learning rates may change and clients may take different numbers of steps. A client that
    took no step keeps its control variate.

    Objective: the mean loss
    Good for: many local steps on different data, with which FedAvg's clients drift apart, and
    clients that take part often.
    Hurts when: most clients take part once or rarely, because their control variates are then old;
    or a device loses its state, because all clients then begin again.
    Memory: one control variate
    Cost: a weighted sum; a second model to each client
    """

    fixed_weights = True  # times a constant
    sums = False
    needs = frozenset({STEP_SUM})
    requires = frozenset({"roster", "whole updates"})

    def __init__(self, *, server_lr: Positive = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.server_lr = server_lr
        self._use_control_variates()

    def weigh(self, cohort: Cohort) -> Decision:
        """Return the prior, times the server's learning rate."""
        c = np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])
        return Decision(self.server_lr * c, keep=self._control(cohort))

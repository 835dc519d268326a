"""The plain average of clients whose steps are corrected for what is peculiar to their data."""

from typing import Unpack

from fairbloom.protocol.names import STEP_SUM
from fairbloom.rounds.method import Cohort, FloatArray, Options
from fairbloom.rounds.ranges import Positive

from .fedavg import FedAvg


class SCAFFOLD(FedAvg):
    r"""SCAFFOLD: FedAvg of clients that correct each local step by control variates.

    .. math:: y \leftarrow y - \eta_s \big(g_k(y) - c_k + c\big), \qquad
        c_k^+ = c_k - c + \frac{u_k}{H_k}

    .. math:: w \leftarrow w - \eta_g \sum_k p_k u_k, \qquad
        C \leftarrow C + \sum_k n_k \Big(\frac{u_k}{H_k} - c\Big)

    with g_k a client's gradient, H_k the sum of its steps' learning rates η_s, and η_g the
    server's. At first zero, c_k is what a client keeps: an estimate of its gradient. c = C / Σ n_k,
    summed over all clients that the server has known, is the mean of these estimates by weight, and
    is sent with the model. So clients that take many steps do not drift to optima of their own, and
    rounds come to rest at the minimum of Σ p_k F_k.

    Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
    ICML 2020, Algorithm 1, option II, doi:10.48550/arXiv.1910.06378.

    Parameters
    ----------
    server_lr
        Learning rate η_g of the server.

    Reductions: the first round with `server_lr=1` is FedAvg's; `server_lr=1` is FedAvg with
    `control_variates=True`.

    Departures: c is the mean over all clients that the server has known, by examples where these
    weigh the updates, and kept as a sum, so that it stays right while clients join; H takes the
    place of K η, since learning rates may change and clients may take unequal numbers of steps. A
    client that took no step keeps its control variate.

    Objective: the mean loss
    Good for: many local steps on unlike data, where FedAvg's clients drift apart, with clients that
    come again.
    Hurts when: most clients come once or rarely, since their control variates are then old; or when
    a device loses what it keeps, since all begin anew then.
    Memory: one control variate
    Cost: a weighted sum; a second model to each client
    """

    tries = ()
    needs = frozenset({STEP_SUM})
    requires = frozenset({"roster", "whole updates"})

    def __init__(self, *, server_lr: Positive = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.server_lr = server_lr
        self._use_control_variates()

    @property
    def fixed_weights(self) -> bool:
        """Whether its weights are the prior in every round: they are, times a number."""
        return True

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior times the server's learning rate."""
        return self.server_lr * super().weigh(cohort)

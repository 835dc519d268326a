"""The average of normalised updates, and the decaying step size that it shares with FedMGDA."""

from typing import Annotated, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray, Options
from fairbloom.rounds.ranges import Positive, Range

from .strategy import FairStrategy


class Stepped(FairStrategy):
    """A method with a server step size that decays over the run."""

    default_weighting = "uniform"

    def __init__(
        self,
        *,
        server_lr: Positive = 1.0,
        decay: Annotated[float, Range("[0, 1]")] = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.server_lr = server_lr
        self.decay = decay

    @property
    def paced(self) -> bool:
        """Whether the step size decays over the run."""
        return self.decay > 0.0

    def step_size(self, server_round: int, num_rounds: int | None) -> float:
        """Return η_t = server_lr · β^⌊t/100⌋ with β = decay^(100/T); decay = 0 means no decay."""
        if self.decay == 0.0:
            return self.server_lr
        if num_rounds is None:
            raise ValueError("decay needs the number of rounds: run the strategy by its start()")
        return float(self.server_lr * self.decay ** (100 / num_rounds * (server_round // 100)))


def moving(cohort: Cohort) -> tuple[FloatArray, FloatArray]:
    """Return 1/‖u_k‖, 0 for zero updates, and the prior over the clients with other updates."""
    norms = np.sqrt(cohort.squared_norms)
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0.0)
    prior = np.where(norms > 0.0, cohort.prior, 0.0)
    return inverse, prior / (prior.sum() or 1.0)


class FedAvgN(Stepped):
    r"""FedAvg of normalised updates.

    .. math:: c_k = \eta_t \frac{p_k}{\lVert u_k \rVert}

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022,
    section 6, doi:10.48550/arXiv.2006.11489.

    Parameters
    ----------
    server_lr
        Step size; the norm of the step is at most this.
    decay
        Share of the step size that is left at the end of the run, reached in a step every 100
        rounds; 0: no decay.

    Objective: none; each client has the same influence on the direction
    Good for: updates of very different norms; a client with a long one does not dominate the
    others.
    Hurts when: updates become small towards the end, or are mostly noise: they are stretched to the
    same norm, so `server_lr` must be small or decay.
    Memory: none
    Cost: norms and a weighted sum
    """

    tries = ({"server_lr": 0.1},)

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior, divided by the norms."""
        inverse, prior = moving(cohort)
        return self.step_size(cohort.round, cohort.num_rounds) * prior * inverse

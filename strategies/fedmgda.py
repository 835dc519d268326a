"""Multi-objective descent: a step that is good for every participant."""

from typing import Unpack

import numpy as np

from .cohort import Cohort, FloatArray
from .ranges import above, at_least, within
from .simplex import shortest
from .strategy import FairStrategy, Options


class _Stepped(FairStrategy):
    """What the methods of this paper share: a server step size that decays over the run."""

    default_weighting = "uniform"

    def __init__(self, *, server_lr: float = 1.0, decay: float = 0.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.server_lr = above(0.0, server_lr=server_lr)
        self.decay = within("[0, 1]", decay=decay)

    def step_size(self, cohort: Cohort) -> float:
        """Return η_t = server_lr · β^⌊t/100⌋ with β = decay^(100/T); decay = 0 means no decay."""
        if self.decay == 0.0:
            return self.server_lr
        if cohort.num_rounds is None:
            raise ValueError("decay needs the number of rounds: run the strategy by its own start()")
        return float(self.server_lr * self.decay ** (100 / cohort.num_rounds * (cohort.round // 100)))


def _moving(cohort: Cohort) -> tuple[FloatArray, FloatArray]:
    """Return 1/‖u_k‖ (0 for a zero update, which takes no part) and the prior over the clients that moved."""
    norms = np.sqrt(cohort.squared_norms)
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0.0)
    prior = np.where(norms > 0.0, cohort.prior, 0.0)
    return inverse, prior / (prior.sum() or 1.0)


class FedAvgN(_Stepped):
    r"""FedAvg of normalised updates.

    .. math:: c_k = \eta_t \frac{p_k}{\lVert u_k \rVert}

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, section 6.

    Parameters
    ----------
    server_lr : float above 0, default 1.0
        Step size; the length of the step is at most this.
    decay : float in [0, 1], default 0.0
        Share of the step size that is left at the end of the run, reached in a step every 100 rounds; 0: no decay.
    """

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior over the norms."""
        inverse, prior = _moving(cohort)
        return self.step_size(cohort) * prior * inverse


class FedMGDA(_Stepped):
    r"""FedMGDA: the shortest combination of the updates near the prior.

    .. math:: c = \eta_t \lambda^*, \qquad \lambda^* = \arg\min_\lambda \Big\lVert \sum_k \lambda_k u_k \Big\rVert^2
        \quad \text{over the simplex with } |\lambda_k - p_k| \le \epsilon

    With epsilon = 1 the step d satisfies ⟨d, u_k⟩ ≥ ‖d‖² for every client: to first order no participant's loss rises.

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, equation 25.

    Parameters
    ----------
    epsilon : float at least 0, default 1.0
        How far a weight may be from its prior.
    server_lr : float above 0, default 1.0
        Step size.
    decay : float in [0, 1], default 0.0
        Share of the step size that is left at the end of the run, reached in a step every 100 rounds; 0: no decay.

    Reductions: `epsilon=0` is FedAvg (uniform by default); `epsilon=1` is MGDA.
    """

    def __init__(
        self, *, epsilon: float = 1.0, server_lr: float = 1.0, decay: float = 0.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(server_lr=server_lr, decay=decay, **options)
        self.epsilon = at_least(0.0, epsilon=epsilon)

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the weights of the shortest combination, times the step size."""
        return self.step_size(cohort) * shortest(cohort.gram, cohort.prior, self.epsilon)


class FedMGDAPlus(FedMGDA):
    r"""FedMGDA+: the shortest combination of the normalised updates near the prior.

    .. math:: c_k = \eta_t \frac{\lambda^*_k}{\lVert u_k \rVert}, \qquad \lambda^* = \arg\min_\lambda
        \Big\lVert \sum_k \lambda_k \frac{u_k}{\lVert u_k \rVert} \Big\rVert^2
        \quad \text{over the simplex with } |\lambda_k - p_k| \le \epsilon

    A client that multiplies its update by any positive number changes nothing.

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, Algorithm 1.

    Parameters
    ----------
    epsilon : float at least 0, default 1.0
        How far a weight may be from its prior.
    server_lr : float above 0, default 1.0
        Step size; the length of the step is at most this.
    decay : float in [0, 1], default 0.0
        Share of the step size that is left at the end of the run, reached in a step every 100 rounds; 0: no decay.

    Reductions: `epsilon=0` is FedAvgN.
    """

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the weights of the shortest combination of unit updates, over the norms, times the step size."""
        inverse, prior = _moving(cohort)
        moved = inverse > 0.0
        weights = np.zeros(cohort.size)
        if moved.any():
            unit_gram = cohort.gram * np.outer(inverse, inverse)
            weights[moved] = shortest(unit_gram[np.ix_(moved, moved)], prior[moved], self.epsilon)
        return self.step_size(cohort) * weights * inverse

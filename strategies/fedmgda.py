"""Multi-objective descent: common descent directions of all participants."""

import math
from typing import ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray
from fairbloom.rounds.ranges import NonNegative

from .descent import COMMON_DESCENT
from .fedavgn import DECAYS, STEPS, StepOptions, Stepped, moving
from .simplex import min_norm_weights
from .strategy import Tries

# The distance of a model from Pareto-stationarity, Definition 1 of Hu et al.: a metric of methods
# with any weights, which have the shortest combination of the updates.
STATIONARITY = "stationarity"

# Wang et al. (FedFV), Table 1; Hu et al. have 1, and tune the step.
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0)


class FedMGDA(Stepped):
    r"""FedMGDA: the shortest combination of the updates near the prior.

    .. math:: c = \eta_t \lambda^*, \qquad
        \lambda^* = \arg\min_\lambda \Big\lVert \sum_k \lambda_k u_k \Big\rVert^2
        \quad \text{over the simplex with } |\lambda_k - p_k| \le \epsilon

    With epsilon = 1 the step d satisfies ⟨d, u_k⟩ ≥ ‖d‖² for every client: to first order, no
    participant's loss rises. If several λ are minimal, the one nearest to p is taken: clients with
    equal updates and priors count the same.

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022,
    equation 25, doi:10.48550/arXiv.2006.11489.

    Parameters
    ----------
    epsilon
        Largest distance of a weight from its prior.

    Reductions: `epsilon=0` is FedAvg (uniform by default); `epsilon=1` is MGDA.

    Objective: a Pareto-stationary point
    Good for: a step that, to first order, raises no participant's loss.
    Hurts when: clients' updates are noisy, because the shortest combination is then near zero. A
    client that has converged has an update of almost zero, which stops the model for all clients.
    Memory: none
    Cost: a Gram matrix and a QP
    """

    tries: ClassVar[Tries] = {"epsilon": EPSILONS}
    requires = frozenset({"gram"})
    lost_to_server_optimizers = COMMON_DESCENT

    def __init__(
        self,
        *,
        epsilon: NonNegative = 1.0,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.epsilon = epsilon
        if self.prior_weights and epsilon >= 1.0:
            raise ValueError(
                f"prior = {self.prior!r} has no effect with epsilon = {epsilon:g}, which"
                " allows any weight: leave prior out, or lower epsilon, as in 0.1"
            )
        if epsilon >= 1.0:  # below, weights near the prior may not reach the shortest combination
            self.reports = (*self.reports, STATIONARITY)

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the weights of the shortest combination, times the step size."""
        weights = min_norm_weights(cohort.gram, cohort.prior, self.epsilon)
        return self.step_size(cohort.round, cohort.num_rounds) * weights

    def own_metrics(self, cohort: Cohort, coefficients: FloatArray) -> dict[str, float]:
        """Return the norm of the shortest combination, over the mean norm of what is combined.

        It is 0 at a Pareto-stationary model. Without a non-zero update there is none.
        """
        found = super().own_metrics(cohort, coefficients)
        mean_norm = self.mean_norm(cohort)
        if STATIONARITY in self.reports and mean_norm > 0.0:
            weights = coefficients / self.step_size(cohort.round, cohort.num_rounds)
            square = float(weights @ cohort.gram @ weights)
            found[STATIONARITY] = math.sqrt(max(0.0, square)) / mean_norm  # rounding may be below 0
        return found

    def mean_norm(self, cohort: Cohort) -> float:
        """Return the mean norm of the vectors that are combined."""
        return float(np.sqrt(np.diag(cohort.gram)).mean())


class FedMGDAPlus(FedMGDA):
    r"""FedMGDA+: the shortest combination of the normalised updates near the prior.

    .. math:: c_k = \eta_t \frac{\lambda^*_k}{\lVert u_k \rVert}, \qquad
        \lambda^* = \arg\min_\lambda
        \Big\lVert \sum_k \lambda_k \frac{u_k}{\lVert u_k \rVert} \Big\rVert^2
        \quad \text{over the simplex with } |\lambda_k - p_k| \le \epsilon

    A client that multiplies its update by a positive number changes nothing. The norm of the step
    is at most η_t.

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022,
    Algorithm 1, doi:10.48550/arXiv.2006.11489.

    Parameters
    ----------
    epsilon
        Largest distance of a weight from its prior.

    Reductions: `epsilon=0` is FedAvgN.

    Objective: a Pareto-stationary point
    Good for: FedMGDA's promise with clients of different scale, or if one inflates its update.
    Hurts when: updates are noisy or clients many: the shortest combination of m orthogonal unit
    updates has norm 1/√m.
    Memory: none
    Cost: a Gram matrix and a QP
    """

    tries: ClassVar[Tries] = {"epsilon": EPSILONS, "server_lr": STEPS, "decay": DECAYS}

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the weights of the shortest combination of unit updates, divided by the norms.

        They are multiplied by the step size.
        """
        inverse, prior = moving(cohort)
        moved = inverse > 0.0
        weights = np.zeros(cohort.size)
        if moved.any():
            unit_gram = cohort.gram * np.outer(inverse, inverse)
            weights[moved] = min_norm_weights(
                unit_gram[np.ix_(moved, moved)], prior[moved], self.epsilon
            )
        return self.step_size(cohort.round, cohort.num_rounds) * weights * inverse

    def mean_norm(self, cohort: Cohort) -> float:
        """Return 1, the norm of the unit updates, or 0 without any."""
        return float(cohort.squared_norms.any())


class MGDAProx(FedMGDAPlus):
    r"""MGDA-Prox: FedMGDA+ of clients with a proximal term in their loss.

    .. math:: \min_x F_k(x) + \tfrac{\mu}{2} \lVert x - w \rVert^2
        \text{ on the clients, then FedMGDA+}

    Source: Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022,
    section 6, doi:10.48550/arXiv.2006.11489.

    Parameters
    ----------
    mu
        Strength of the proximal term; its gradient is mu · (x − w).
    epsilon
        Largest distance of a weight from its prior.

    Reductions: `mu=0` is FedMGDAPlus.

    Objective: a Pareto-stationary point
    Good for: FedMGDA+ with many local steps: the pull keeps updates close to the gradients'
    directions.
    Hurts when: FedMGDA+ hurts, or mu is large: clients then hardly leave w, and most of their steps
    are wasted.
    Memory: none
    Cost: a Gram matrix and a QP
    """

    # The paper's 0.1: its proximal term has no factor 1/2. It has a decay of 1/5 as well.
    tries: ClassVar[Tries] = {"mu": (0.2,), "server_lr": STEPS, "decay": (*DECAYS, 0.2)}
    own_terms = frozenset({"proximal_mu"})

    def __init__(
        self,
        *,
        mu: NonNegative = 0.1,
        epsilon: NonNegative = 1.0,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(epsilon=epsilon, **options)
        self.proximal_mu = mu

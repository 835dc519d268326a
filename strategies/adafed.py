"""A common descent direction with slopes that follow the clients' losses."""

from typing import ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import LARGEST_COEFFICIENT, Cohort, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative, Positive

from .descent import CommonDescent
from .strategy import Tries

# An update that is a combination of earlier ones, up to this share of its norm, is skipped.
NO_NEW_DIRECTION = 1e-6


class AdaFed(CommonDescent):
    r"""AdaFed: a direction that descends every client's loss, the faster the higher the loss.

    Gram–Schmidt in the order of client names,

    .. math:: v_k = \frac{u_k - \sum_{i<k} \frac{\langle u_k, v_i \rangle}{\lVert v_i \rVert^2} v_i}
        {F_k^\gamma - \sum_{i<k} \frac{\langle u_k, v_i \rangle}{\lVert v_i \rVert^2}}, \qquad
        \lambda_k = \frac{\lVert v_k \rVert^{-2}}{\sum_i \lVert v_i \rVert^{-2}}, \qquad
        d = \sum_k \lambda_k v_k

    gives w ← w − η d with ⟨d, u_k⟩ = F_k^γ ‖d‖² for every k.

    Source: Hamidi and Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent Direction,
    TMLR 2024, Algorithm 1, doi:10.48550/arXiv.2401.04993.

    Parameters
    ----------
    gamma
        How strongly the slope of a client's descent follows its loss; 0: the same slope for all.
    server_lr
        Step size η.

    Departures: an update that is a combination of earlier ones, up to 1e-6 of its norm, is skipped.
    A loss below 0 counts as 0.

    Objective: a Pareto-stationary point
    Good for: a step that lowers every participant's loss, the highest loss most.
    Hurts when: losses leave the scale that `server_lr` was chosen for: the step is proportional to
    1/F^γ and grows as losses fall.
    Memory: none
    Cost: a Gram matrix and Gram–Schmidt
    """

    tries: ClassVar[Tries] = {"gamma": (1.0, 5.0)}
    requires = frozenset({"exact gram"})

    def __init__(
        self, *, gamma: NonNegative = 1.0, server_lr: Positive = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.server_lr = server_lr

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return c by Gram–Schmidt on coefficients.

        With r_k the numerator and s_k the denominator of v_k, d = Σ s_k r_k/‖r_k‖² / Σ s_k²/‖r_k‖²,
        without a division by s_k, which may be 0. Losses are divided by the largest one, which is a
        factor of d.
        """
        G = cohort.gram
        m = cohort.size
        F = np.maximum(cohort.losses, 0.0)
        largest = F.max() or 1.0
        slopes = (F / largest) ** self.gamma
        weights = np.zeros(m)
        total = 0.0
        directions: list[tuple[FloatArray, float, float]] = []
        for k in range(m):
            r = np.eye(m)[k]
            s = slopes[k]
            for direction, slope, square in directions:
                share = direction @ G[k] / square
                r = r - share * direction
                s = s - share * slope
            square = r @ G @ r
            if square > NO_NEW_DIRECTION**2 * G[k, k]:
                directions.append((r, s, square))
                weights += s / square * r
                total += s**2 / square
        if total == 0.0:
            return weights
        with np.errstate(over="ignore", divide="ignore"):
            factor = np.minimum(
                self.server_lr / total / np.power(largest, self.gamma), np.finfo(np.float64).max
            )
            c = np.clip(weights * factor, -LARGEST_COEFFICIENT, LARGEST_COEFFICIENT)
        return np.asarray(c)

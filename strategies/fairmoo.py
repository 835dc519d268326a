"""Multi-objective descent with the variance of the losses as one more objective."""

from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray
from fairbloom.rounds.ranges import NonNegative, Range, within

from .descent import CommonDescent
from .fedavgn import StepOptions, Stepped
from .guidance import NOTHING_COMMON
from .simplex import shortest_combination
from .strategy import Tries

# Up to this share of the updates' mean norm, the gradient of the variance counts as zero.
VARIANCE_ROUNDING = 1e-12


class FairMOO(CommonDescent, Stepped):
    r"""FairMOO: the shortest combination of the updates that does not raise the losses' variance.

    .. math:: V = \frac{1}{m-1} \sum_k (F_k - \bar F)^2, \qquad
        v = \frac2m \sum_k (F_k - \bar F) \, u_k, \qquad
        d = \begin{cases}
            v & \text{if } V > \text{tolerance} \\
            \arg\min_{\langle d, v \rangle \ge 0} \lVert d \rVert
              \text{ over } d = \sum_k c_k u_k & \text{otherwise}
        \end{cases}

    with c in the simplex and F̄ the mean loss. The step is η_t ℓ d/‖d‖, with ℓ the length, or the
    mean norm of the updates. Down along v, the variance of the losses falls. If every update points
    up the variance, v is the step, too.

    Source: Zhang et al. 2025, read in the authors' public code, github.com/Zhg9300/FairMOO, not in
    the paper.

    Parameters
    ----------
    tolerance
        Largest variance V of the losses at which the mean loss is lowered.
    length
        Norm ℓ of a step; 0 or None: the mean norm of the updates that are not zero.

    Reductions: with equal losses, the direction of FedMGDA with `epsilon=1`. A single client's
    update is the step.

    Departures: a step of the authors' code has the norm 0.2, which falls by the factor 0.999 in
    each of 3000 rounds: `length=0.2, decay=0.0497, server_schedule="exponential"`. That code has
    the mean losses during the local epoch, here they belong to the received model. If no
    combination meets the constraint it takes the last iterate of its solver, here v.

    Objective: a Pareto-stationary point among models with a small variance of the losses
    Good for: few clients with conflicting data, which must be served equally.
    Hurts when: losses cannot be equal, because one client's data are noisier: as long as the
    variance is above the tolerance, the low losses rise.
    Memory: none
    Cost: a Gram matrix and a QP, or about ten if the variance would rise
    """

    # The default is of one problem: it has the unit of a squared loss.
    tries: ClassVar[Tries] = {"tolerance": (0.006, 0.06, 0.6)}

    def __init__(
        self,
        *,
        tolerance: NonNegative = 0.006,
        length: Annotated[float | None, Range("[0, inf)")] = None,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.tolerance = tolerance
        self.length = None if length is None else within("[0, inf)", length=length) or None

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return c, scaled to the length of the step."""
        G = cohort.gram
        norms = np.sqrt(np.diag(G))
        if not norms.any():
            return np.zeros(cohort.size)
        mean_norm = norms[norms > 0.0].mean()
        from_mean = cohort.losses - cohort.losses.mean()
        # The mean of equal losses is rounded; v would consist only of these differences.
        from_mean[np.abs(from_mean) <= VARIANCE_ROUNDING * np.abs(cohort.losses).max()] = 0.0
        of_variance = 2.0 / cohort.size * from_mean
        variance = from_mean @ from_mean / max(1, cohort.size - 1)
        direction = shortest_without_rise(G, of_variance) if variance <= self.tolerance else None
        least = NOTHING_COMMON
        if direction is None:
            direction = of_variance
            least = VARIANCE_ROUNDING
        norm = np.sqrt(max(0.0, direction @ G @ direction))
        if norm <= least * mean_norm:
            return np.zeros(cohort.size)
        usual = self.length or mean_norm
        length = self.step_size(cohort.round, cohort.num_rounds) * usual
        return np.asarray(length / norm * direction)


def shortest_without_rise(gram: FloatArray, slope: FloatArray) -> FloatArray | None:
    """Return argmin cᵀGc over c in the simplex with cᵀGa ≥ 0, shape (m,); None if no c is feasible.

    a is `slope`, shape (m,). With the multiplier ν of the constraint, c minimises the norm of
    Σ c_k (u_k − ν v), with v = Σ a_k u_k: the shortest combination of shifted updates. Its product
    with v grows with ν, so that ν is the root of a monotone function, which is piecewise linear.
    """
    from scipy.optimize import brentq  # imported late: most methods do not need it

    products = gram @ slope
    largest = np.abs(products).max()

    def shifted(multiplier: float) -> FloatArray:
        rows = np.eye(len(gram)) - multiplier * slope
        return shortest_combination(rows, gram) + multiplier * slope

    def product(multiplier: float) -> float:
        return float(shifted(multiplier) @ products / largest) + VARIANCE_ROUNDING

    # Products that are rounding errors: v is zero, for example of equal updates.
    if largest <= VARIANCE_ROUNDING * np.abs(slope).max() * np.trace(gram) or product(0.0) >= 0.0:
        return shifted(0.0)
    if products.max() < 0.0:
        return None
    multiplier = np.sqrt(np.trace(gram) / (slope @ products))
    while product(multiplier) < 0.0:
        multiplier *= 2.0
    return shifted(brentq(product, 0.0, multiplier))

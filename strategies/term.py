"""Tilted losses: from the average to the worst client by one number."""

from typing import ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray, Options

from .strategy import FairStrategy, Tries


class TERM(FairStrategy):
    r"""TERM: each client counts by the exponential of its loss.

    .. math:: c_k = \frac{p_k e^{t F_k}}{\sum_j p_j e^{t F_j}}

    Source: Li et al., Tilted Empirical Risk Minimization, ICLR 2021, equation 2, at the level of
    clients, doi:10.48550/arXiv.2007.01162.

    Parameters
    ----------
    tilt
        The tilt t: above 0, high losses count more, up to only the worst client; below 0, they
        count less, as outliers.

    Reductions: `tilt=0` is FedAvg. FedEBA at the temperature τ (Wang et al., 2023, equation 3,
    doi:10.48550/arXiv.2301.12407) is `TERM(tilt=1/τ, weighting="uniform")`.

    Objective: log Σ p e^(tF) / t
    Good for: tuning by one number, from discounting outliers (t < 0) through the mean (t = 0) to
    the worst client (large t).
    Hurts when: losses change much over a run: weights depend on t F, so the same t is harsh early
    and mild late.
    Memory: none
    Cost: a weighted sum
    """

    # Malekmohammadi and Yu (Semi-VRed), appendix B.2; and 5, which helps on the four hospitals.
    tries: ClassVar[Tries] = {"tilt": (0.01, 0.1, 0.5, 1.0, 5.0)}
    needs = frozenset({"loss-before"})
    sums = True

    def __init__(self, *, tilt: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.tilt = tilt

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the tilted prior."""
        if self.tilt == 0.0:
            return cohort.prior
        F = cohort.losses
        largest = F.max() if self.tilt > 0.0 else F.min()  # of the exponents: it cancels
        with np.errstate(over="ignore"):  # to −inf, which gives a weight of 0
            exponents = self.tilt * (F - largest)
        c = cohort.prior * np.exp(exponents)
        return np.asarray(c / c.sum())

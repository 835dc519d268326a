"""Weights by the order of losses."""

from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import Cohort, FloatArray, Options
from fairbloom.rounds.ranges import Range

from .strategy import FairStrategy, Tries


class GiFair(FairStrategy):
    r"""GIFAIR-FL: a client's weight rises with the number of clients with a lower loss.

    .. math:: c_k = p_k + \lambda r_k, \qquad
        r_k = \sum_{j \ne k} \operatorname{sign}(F_k - F_j), \qquad
        \lambda = \frac{s \min_j p_j}{m - 1}

    with s the strength. Weights are at least 0 and sum to 1.

    Source: Yue et al., GIFAIR-FL: A Framework for Group and Individual Fairness in Federated
    Learning, 2021, GIFAIR-FL-Global, doi:10.48550/arXiv.2108.02741.

    Parameters
    ----------
    strength
        Share of the largest regularisation that makes no weight negative, the bound of section 3.

    Reductions: `strength=0` is FedAvg.

    Departures: the server weighs the clients' updates. In the paper each client scales its own
    gradient by the same weight, so that its steps are longer or shorter and not only its part of
    the average.

    Objective: the mean loss and the gaps between losses
    Good for: a mild correction that uses only the order of losses, so that a single extreme loss
    cannot dominate.
    Hurts when: clients differ much in size: no weight moves by more than the strength times the
    smallest prior.
    Memory: none
    Cost: m² comparisons and a weighted sum
    """

    # Malekmohammadi and Yu (Semi-VRed), appendix B.2: four values up to the bound.
    tries: ClassVar[Tries] = {"strength": (0.25, 0.5, 0.75, 1.0)}
    needs = frozenset({"loss-before"})
    sums = True

    def __init__(
        self, *, strength: Annotated[float, Range("[0, 1]")] = 0.5, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.strength = strength

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior, moved by rank."""
        F = cohort.losses
        p = cohort.prior
        if cohort.size == 1:
            return p
        r = np.sign(F[:, None] - F[None, :]).sum(axis=1)
        return np.asarray(p + self.strength * p.min() / (cohort.size - 1) * r)

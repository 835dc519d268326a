"""Fairness between two groups: a client whose gap between them is far from the gap over all clients counts less."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from fairbloom.protocol.names import ACCURACY_BEFORE, HITS, POSITIVES
from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, FloatArray, Kept, Options, Probed
from fairbloom.rounds.ranges import NonNegative

from .strategy import FairStrategy


class FairFed(FairStrategy):
    r"""FairFed: weights fall at clients whose gap between two groups is far from the gap over all clients.

    .. math:: c_k = \frac{\omega_k}{\sum_{j \in S} \omega_j}, \qquad
        \omega_k \leftarrow \omega_k - \beta \Big(\Delta_k - \frac{1}{m} \sum_{j \in S} \Delta_j\Big)

    .. math:: \Delta_k = \lvert F_k - F \rvert, \qquad
        F_k = \frac{\text{hits}_{k1}}{\text{positives}_{k1}} - \frac{\text{hits}_{k0}}{\text{positives}_{k0}}

    The gap is that of equal opportunity, the difference of the true positive rates in the two
    groups of a client's training examples, under the received model; F is the gap of the sums over
    S. Where a client has no positive example in one of the groups, its accuracy and that over S
    take the place of the gaps. ω begins at the client's share of the examples of all clients known
    up to now. Weights may get negative: `negative-weights` counts them.

    Source: Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023; the
    main text was not read: the rule is as the code of DecLearn and of FedFB has it,
    doi:10.48550/arXiv.2110.00857.

    Parameters
    ----------
    beta
        How fast weights move with the distance of a client's gap.

    Reductions: `beta=0` is FedAvg, and so is any beta where all clients are equally far.

    Departures: negative ω, of which the paper says nothing, are used as they are; where those of a
    round's clients do not add up to more than 0, the round is weighted by examples. DecLearn begins
    at the number of examples in place of the share, so that its beta is another one.

    Objective: the gap between two groups over all clients
    Good for: clients that each have both groups, and unlike gaps between them: the model is to be
    fair to the groups over all clients together.
    Hurts when: a client has few examples of a group, as its gap is then noise; or the gap over all
    clients is wide itself, since clients with a narrow one count less then. Weights drift without
    bound while distances differ.
    Memory: one number a client
    Cost: a weighted sum
    """

    tries = ({"beta": 0.05}, {"beta": 0.2})
    needs = frozenset({ACCURACY_BEFORE, *POSITIVES, *HITS})
    default_weighting = None
    requires = frozenset({"roster"})
    reports = (NEGATIVE_WEIGHTS,)

    def __init__(self, *, beta: NonNegative = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.beta = beta

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return ω of the participants, renormalised."""
        weights = self._moved(cohort)
        weights = weights if weights.sum() > 0.0 else cohort.counts
        c: FloatArray = weights / weights.sum()
        return c

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        """Keep ω; that of absent clients stays."""
        moved = zip(cohort.names, self._moved(cohort).tolist(), strict=True)
        self.memory = {"weights": {**self.memory.get("weights", {}), **dict(moved)}}
        return {}

    def _moved(self, cohort: Cohort) -> FloatArray:
        """Return the participants' ω after the round, shape (m,)."""
        known = {name: size for name, size in cohort.roster.items() if size > 0.0}
        sizes = {**dict(zip(cohort.names, cohort.counts.tolist(), strict=True)), **known}
        total = sum(sizes.values())
        weights = self.memory.get("weights", {})
        before = np.array([weights.get(name, sizes[name] / total) for name in cohort.names])
        distances = distances_of(cohort)
        moved: FloatArray = before - self.beta * (distances - distances.mean())
        return moved


def distances_of(cohort: Cohort) -> FloatArray:
    """Return Δ, how far each client's gap is from the gap over all, or its accuracy where it has no gap, shape (m,)."""
    positives, hits = (
        np.stack([cohort.metrics[name] for name in names]) for names in (POSITIVES, HITS)
    )
    accuracies = cohort.metrics[ACCURACY_BEFORE]
    accuracy = cohort.counts @ accuracies / cohort.counts.sum()
    gaps = _gap(positives, hits)
    gap = _gap(positives.sum(axis=1), hits.sum(axis=1))
    found: FloatArray = np.where(np.isnan(gaps), np.abs(accuracies - accuracy), np.abs(gaps - gap))
    return found


def _gap(positives: FloatArray, hits: FloatArray) -> FloatArray:
    """Return the true positive rate of the second group less that of the first.

    NaN where one has no positives.
    """
    rates = np.divide(hits, positives, out=np.full_like(positives, np.nan), where=positives > 0.0)
    gap: FloatArray = rates[1] - rates[0]
    return gap

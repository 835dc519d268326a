"""Fairness between two groups: clients with an unusual gap between the groups count less."""

from collections.abc import Mapping
from typing import ClassVar, Unpack

import numpy as np

from fairbloom.protocol.names import ACCURACY_BEFORE, HITS, POSITIVES
from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, Decision, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative

from .strategy import FairStrategy, Tries


class FairFed(FairStrategy):
    r"""FairFed: clients lose weight if their gap between two groups is far from the common gap.

    .. math:: c_k = \frac{\omega_k}{\sum_{j \in S} \omega_j}, \qquad
        \omega_k \leftarrow \omega_k
        - \beta \Big(\Delta_k - \frac{1}{m} \sum_{j \in S} \Delta_j\Big)

    .. math:: \Delta_k = \lvert F_k - F \rvert, \qquad
        F_k = \frac{\text{hits}_{k1}}{\text{positives}_{k1}}
        - \frac{\text{hits}_{k0}}{\text{positives}_{k0}}

    The gap is that of equal opportunity: the difference of the true positive rates in the two
    groups of a client's training examples, under the received model. F is the gap of the sums over
    S. If a client has no positive example in one of the groups, its accuracy and that over S
    replace the gaps. ω starts at the client's share of the examples of all known clients. Weights
    may become negative: `negative-weights` counts them.

    Source: Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023; the
    main text was not read: the rule is as the code of DecLearn and of FedFB has it,
    doi:10.48550/arXiv.2110.00857.

    Parameters
    ----------
    beta
        How fast weights move with the distance of a client's gap.

    Reductions: `beta=0` is FedAvg, and so is any beta if all clients are equally far.

    Departures: negative ω, which the paper does not mention, are used unchanged; if a round's ω do
    not sum to more than 0, the round is weighted by examples. DecLearn starts at
    the number of examples instead of the share, so its beta has another scale.

    Objective: the gap between two groups over all clients
    Good for: clients that each have both groups, with different gaps between them: the model
    becomes fair to the groups over all clients together.
    Hurts when: a client has few examples of a group, because its gap is then noise; or the gap over
    all clients is itself wide, because clients with a narrow gap then count less. Weights drift
    without bound while distances differ.
    Memory: one number per client
    Cost: a weighted sum
    """

    tries: ClassVar[Tries] = {"beta": (0.05, 0.2)}
    needs = frozenset({ACCURACY_BEFORE, *POSITIVES, *HITS})
    default_weighting = None
    requires = frozenset({"roster"})
    reports = (NEGATIVE_WEIGHTS,)

    def __init__(self, *, beta: NonNegative = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.beta = beta

    def weigh(self, cohort: Cohort) -> Decision:
        """Return ω of the participants, renormalised; the ω of absent clients stays."""
        before = cohort.past.memory.get("weights", {})
        moved = self._moved(cohort, before)
        weights = moved if moved.sum() > 0.0 else cohort.counts
        after = dict(zip(cohort.names, moved.tolist(), strict=True))
        return Decision(np.asarray(weights / weights.sum()), {"weights": {**before, **after}})

    def _moved(self, cohort: Cohort, weights: Mapping[str, float]) -> FloatArray:
        """Return the participants' ω after the round, shape (m,), from all `weights` before it."""
        known = {name: size for name, size in cohort.roster.items() if size > 0.0}
        sizes = {**dict(zip(cohort.names, cohort.counts.tolist(), strict=True)), **known}
        total = sum(sizes.values())
        before = np.array([weights.get(name, sizes[name] / total) for name in cohort.names])
        distances = distances_of(cohort)
        return np.asarray(before - self.beta * (distances - distances.mean()))


def distances_of(cohort: Cohort) -> FloatArray:
    """Return Δ, the distance of each client's gap to the gap over all, shape (m,).

    For a client without a gap, it is the distance of its accuracy to that over all.
    """
    positives = np.stack([cohort.metrics[name] for name in POSITIVES])
    hits = np.stack([cohort.metrics[name] for name in HITS])
    accuracies = cohort.metrics[ACCURACY_BEFORE]
    accuracy = cohort.counts @ accuracies / cohort.counts.sum()
    gaps = _gap(positives, hits)
    gap = _gap(positives.sum(axis=1), hits.sum(axis=1))
    of_gaps = np.abs(gaps - gap)
    of_accuracies = np.abs(accuracies - accuracy)
    return np.asarray(np.where(np.isnan(gaps), of_accuracies, of_gaps))


def _gap(positives: FloatArray, hits: FloatArray) -> FloatArray:
    """Return the true positive rate of the second group minus that of the first.

    It is NaN if a group has no positives.
    """
    rates = np.divide(hits, positives, out=np.full_like(positives, np.nan), where=positives > 0.0)
    return np.asarray(rates[1] - rates[0])

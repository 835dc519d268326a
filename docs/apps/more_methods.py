"""More methods of one's own, and a rule on the client, as docs/your-method.md describes them."""

from dataclasses import replace
from typing import Annotated

import numpy as np

from fairbloom.rounds.cohort import Decision, Kept
from fairbloom.rounds.ranges import Range
from fairbloom.strategies import FairStrategy, FedFV


class Clipped(FairStrategy):
    """FedAvg in which no update is much longer than the median.

    Parameters
    ----------
    times
        How many times the median length an update may have.
    """

    reports = ("clipped",)

    def __init__(self, *, times: Annotated[float, Range("(0, inf)")] = 2.0, **options):
        super().__init__(**options)
        self.times = times

    def weigh(self, cohort):
        return cohort.prior * self._shortened(cohort)

    def _shortened(self, cohort):
        lengths = np.sqrt(cohort.squared_norms)
        longest = self.times * np.median(lengths)
        return np.divide(longest, lengths, out=np.ones(cohort.size), where=lengths > longest)

    def own_metrics(self, cohort, coefficients):
        return {"clipped": float(np.sum(self._shortened(cohort) < 1.0))}


class Agreeing(FairStrategy):
    """In each array, the mean of the clients that do not pull against the mean of all."""

    requires = frozenset({"gram by array"})

    def weigh(self, cohort):
        along = cohort.grams[:, : cohort.size, : cohort.size] @ cohort.prior
        c = cohort.prior * (along >= 0.0)
        total = c.sum(axis=1, keepdims=True)
        return np.divide(c, total, out=np.zeros_like(c), where=total > 0.0)


def mix(cohort):
    """Return the cohort of mixtures, each the mean of the 3/4 of updates nearest to one, and M.

    M has the shares of the rows in the mixtures. Kept rows stay as they are.
    """
    G, m, count = cohort.gram, cohort.size, cohort.size - cohort.size // 4
    squares = np.diagonal(G)[:m]
    distances = squares + squares[:, None] - 2.0 * G[:m, :m]
    near = distances <= np.sort(distances)[:, count - 1 : count]
    M = np.eye(cohort.rows)
    M[:m, :m] = near / near.sum(axis=1, keepdims=True)
    mixed = M @ G @ M.T
    norms = np.diagonal(mixed)[:m]
    return replace(cohort, gram_of=lambda: mixed, squared_norms_of=lambda: norms), M


class Mixed(FedFV):
    """FedFV of mixed updates."""

    def weigh(self, cohort):
        mixed, M = mix(cohort)
        decided = super().weigh(mixed)
        keep = {kept: row @ M for kept, row in decided.keep.items()}
        return Decision(decided.coefficients @ M, keep=keep)


class Heading(FairStrategy):
    """FedAvg that tells its clients where its last step went."""

    def weigh(self, cohort):
        c = np.append(cohort.prior, np.zeros(len(cohort.memory)))
        return Decision(c, keep={Kept("heading", cohort.round): c})

    def sends(self):
        return {row.key: (row, 1.0) for row in self.past.kept}


class Following:
    """Each step goes a little along the last step of all."""

    def start(self, received, kept, sent):
        return sent.get("heading", {})

    def correct(self, gradients, state, step):
        return {name: gradient + 0.1 * state.get(name, 0.0) for name, gradient in gradients.items()}

    def finish(self, received, trained, state, steps):
        return trained, {}

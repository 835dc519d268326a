"""Weights by the losses and by how far updates agree, smoothed over the rounds."""

from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, Decision, FloatArray, Options
from fairbloom.rounds.ranges import Range

from .strategy import FairStrategy, Tries

# Up to this share of Σ‖u‖², the squared norm of the updates' sum is a rounding error.
SUM_ROUNDING = 1e-12


class FedPW(FairStrategy):
    r"""FedPW: clients with a high loss, or with an update that agrees with the others, count more.

    .. math:: s_k = \frac{F_k}{\sum_j F_j}, \qquad
        \beta_l = \min\Big(1, \beta \frac{\bar F}{\bar F_0}\Big), \qquad
        \delta_k \leftarrow (1 - \beta_l) \, \delta_k + \beta_l s_k, \qquad
        p_k \leftarrow \frac{p_k + \delta_k}{\sum_{j \in S} (p_j + \delta_j)}

    .. math:: r_k = \Big\langle u_k, \sum_j u_j \Big\rangle, \qquad
        c_k = \frac{a p_k + b q_k}{a + b}

    with F̄₀ the mean loss of the first round. The agreement r has the same effect on q as the loss
    F on p. a and b are the standard deviations of p and q over the round's clients S; if both are
    0, c is the mean of p and q. The weights sum to 1. Some are negative if updates conflict:
    `negative-weights` counts them.

    Source: Rethinking Fair Federated Learning from Parameter and Client View, NeurIPS 2025, read in
    the authors' public code, github.com/guankaiqi/FedPW, not in the paper.

    Parameters
    ----------
    beta
        Share of the first round in its running means; later shares fall with the mean loss and the
        mean agreement.

    Reductions: equal losses and updates that agree equally are averaged. In the first round, with
    `beta=1`, p and q are the shares of the losses and of the agreements.

    Departures: the masks of the authors' code, which set each client's smallest entries to zero and
    lengthen entries on which clients agree, are left out, because they are no weights of updates.
    That code has the mean losses during local training, here they belong to the received model. Its
    shares β can be above 1. It has all clients in each round: here sums, means and deviations are
    over the round's clients, absent clients keep their numbers, and newcomers start at 0. If a sum
    that divides is 0, clients count the same; for the agreements, up to 1e-12 Σ‖u‖².

    Objective: none; weights follow losses and agreement
    Good for: many rounds with the same clients: weights change little from round to round.
    Hurts when: one client's loss stays high because its data are noisy. Agreement grows with the
    norm of an update: an inflated one gains weight, and one that disagrees loses it.
    Memory: four numbers per client, and two in all
    Cost: a Gram matrix
    """

    # The default is the authors'; 1 forgets the earlier rounds as long as the mean loss is as high.
    tries: ClassVar[Tries] = {"beta": (0.1, 0.3, 1.0)}
    needs = frozenset({"loss-before"})
    default_weighting = None
    requires = frozenset({"gram"})
    reports = (NEGATIVE_WEIGHTS,)

    def __init__(
        self, *, beta: Annotated[float, Range("(0, 1]")] = 0.3, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.beta = beta

    def weigh(self, cohort: Cohort) -> Decision:
        """Return the mean of p and q, weighted by their deviations over the round's clients.

        The participants' p, q, δ and ε are remembered, and the means of the first round.
        """
        signals = signals_of(cohort)
        known = cohort.past.memory.get("states", {})
        first = cohort.past.memory.get("first", signals.mean(axis=1).tolist())
        before = np.array([known.get(name, np.zeros(4)) for name in cohort.names])
        moved = self._moved(before.T.reshape(2, 2, cohort.size), signals, np.array(first))
        weights = moved[0]
        # Not a sample's deviations, which a single client lacks: their ratio is the same.
        deviations = weights.std(axis=1, keepdims=True)
        numbers = moved.reshape(4, cohort.size).T.tolist()
        return Decision(
            np.asarray((shares_of(deviations.T) @ weights)[0]),
            {
                "first": first,
                "states": {**known, **dict(zip(cohort.names, numbers, strict=True))},
            },
        )

    def _moved(self, before: FloatArray, signals: FloatArray, first: FloatArray) -> FloatArray:
        """Return (p, q) and (δ, ε) of the participants after the round, shape (2, 2, m).

        `before` has them before it, `signals` F and r, and `first` the means of the first round.
        """
        weights, means = before
        now = signals.mean(axis=1)
        change = np.divide(now, first, out=np.zeros(2), where=first != 0.0)
        beta = np.minimum(1.0, self.beta * change)[:, None]
        means = (1.0 - beta) * means + beta * shares_of(signals)
        return np.stack([shares_of(weights + means), means])


def signals_of(cohort: Cohort) -> FloatArray:
    """Return the losses F and the agreements r, shape (2, m)."""
    agreements = cohort.gram.sum(axis=1)
    cancel = agreements.sum() <= SUM_ROUNDING * np.trace(cohort.gram)
    return np.stack([cohort.losses, np.where(cancel, 0.0, agreements)])


def shares_of(rows: FloatArray) -> FloatArray:
    """Return each row of a matrix over its sum, or equal shares if the sum is 0."""
    sums = rows.sum(axis=1, keepdims=True)
    equal = np.full_like(rows, 1.0 / rows.shape[1])
    return np.asarray(np.divide(rows, sums, out=equal, where=sums != 0.0))

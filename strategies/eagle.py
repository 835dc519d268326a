"""Variance of the gaps between each client's loss and its loss without the others."""

from dataclasses import replace
from typing import ClassVar, Unpack

from fairbloom.protocol.names import LOSS_BASELINE, LOSS_BEFORE
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative

from .strategy import FairStrategy, Tries
from .vred import above_mean

# A client stops training by itself when its loss has fallen by less than TOLERANCE of itself over
# PATIENCE epochs, or after EPOCHS.
PATIENCE = 5
TOLERANCE = 1e-4
EPOCHS = 200


class EAGLE(FairStrategy):
    r"""EAGLE: descends the mean loss plus λ times the variance of the gaps to clients' own losses.

    .. math:: c_k = p_k \big(1 + 2 \lambda (r_k - \bar r)\big), \qquad r_k = F_k - L_k, \qquad
        \bar r = \sum_j p_j r_j

    L_k is the least loss that client k reaches without the others, from the first model that it
    receives. The client finds it once, before its first reply, keeps it, and reports it in every
    round; if it loses L_k, it does so again, from the model that it then receives. The weights
    sum to 1; for a large lam some are negative, and are used unchanged: `negative-weights` counts
    them.

    Source: Erraji, Perrot and Bellet, 2026, doi:10.48550/arXiv.2603.29818.

    Parameters
    ----------
    lam
        Weight λ of the variance of the gaps.

    Reductions: `lam=0` is FedAvg with the same weighting; if all L_k are equal, it is VRed with
    `beta=lam`.

    Departures: only the paper's abstract and a summary of it were read, and no public code was
    found. The stopping rule of this training is ours: when the training loss has fallen by less
    than 1e-4 of itself over 5 epochs, or after 200; L_k is the least loss until then. Negative
    weights are used as in VRed, and means are over the round's clients.

    Objective: the mean loss and λ times the variance of the gaps
    Good for: clients of different difficulty, or with noisy labels: a loss that is high because it
    cannot fall gets no weight, unlike in methods that make losses equal.
    Hurts when: a client has few examples and memorises them when it trains alone: L_k is then near
    zero, and this is VRed. A client that reports too low an L_k gains weight.
    Memory: none
    Cost: a weighted sum, and once per client a training without the others
    """

    tries: ClassVar[Tries] = {"lam": (0.1, 0.5)}
    needs = frozenset({LOSS_BEFORE, LOSS_BASELINE})
    default_weighting = "uniform"
    reports = (NEGATIVE_WEIGHTS,)

    def __init__(self, *, lam: NonNegative = 0.5, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.lam = lam

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with the stopping rule of training for L_k."""
        return replace(
            super().terms(server_round),
            baseline_patience=PATIENCE,
            baseline_tolerance=TOLERANCE,
            baseline_epochs=EPOCHS,
        )

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior, moved by how far each client's gap is above the mean gap."""
        gaps = cohort.losses - cohort.metrics[LOSS_BASELINE]
        return cohort.prior * (1.0 + 2.0 * self.lam * above_mean(gaps, cohort.prior))

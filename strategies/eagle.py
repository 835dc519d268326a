"""Gaps to what each client reaches alone: clients of unlike difficulty are compared fairly."""

from dataclasses import replace
from typing import Unpack

from fairbloom.protocol.names import LOSS_BASELINE, LOSS_BEFORE
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import NEGATIVE_WEIGHTS, Cohort, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative

from .strategy import FairStrategy
from .vred import above_mean

PATIENCE = 5
TOLERANCE = 1e-4
EPOCHS = 200
"""A client's training alone ends when its loss fell by less than TOLERANCE of itself over PATIENCE
epochs, or after so many EPOCHS."""


class EAGLE(FairStrategy):
    r"""EAGLE: descends the mean loss plus λ times the variance of the clients' gaps to what each reaches alone.

    .. math:: c_k = p_k \big(1 + 2 \lambda (r_k - \bar r)\big), \qquad r_k = F_k - L_k, \qquad
        \bar r = \sum_j p_j r_j

    L_k is the least loss that client k reaches by training alone, from the first model that it
    receives. The client finds it once, before its first reply, keeps it, and reports it in every
    round; one that has lost it trains alone again, from the model that it receives then. The
    weights sum to 1; for a large lam some are negative, and are used as they are:
    `negative-weights` counts them.

    Source: Erraji, Perrot and Bellet, 2026, doi:10.48550/arXiv.2603.29818.

    Parameters
    ----------
    lam
        Weight λ of the variance of the gaps.

    Reductions: `lam=0` is FedAvg with the same weighting; where all L_k are equal it is VRed with
    `beta=lam`.

    Departures: only the paper's abstract and a summary of it were read, and no public code was
    found. When a client stops training alone is ours: when its training loss fell by less than 1e-4
    of itself over 5 epochs, or after 200; L_k is then the least that it met. Negative weights are
    used as in VRed, and only the round's clients are averaged over.

    Objective: the mean loss and λ times the variance of the gaps
    Good for: clients of unlike difficulty, or with noisy labels: one whose loss is high because it
    cannot fall is not followed, as it is where losses themselves are made equal.
    Hurts when: a client has few examples, as it learns them by heart alone: L_k is then near zero,
    and this is VRed. A client that reports too low an L_k gains weight.
    Memory: none
    Cost: a weighted sum, and at each client one training alone
    """

    tries = ()
    needs = frozenset({LOSS_BEFORE, LOSS_BASELINE})
    default_weighting = "uniform"
    reports = (NEGATIVE_WEIGHTS,)

    def __init__(self, *, lam: NonNegative = 0.5, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.lam = lam

    def terms(self, server_round: int) -> Terms:
        """Return how long a client that has no L_k yet trains alone."""
        plain = super().terms(server_round)
        return replace(
            plain, baseline_patience=PATIENCE, baseline_tolerance=TOLERANCE, baseline_epochs=EPOCHS
        )

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return the prior moved by what each client's gap is above the mean."""
        gaps = cohort.losses - cohort.metrics[LOSS_BASELINE]
        return cohort.prior * (1.0 + 2.0 * self.lam * above_mean(gaps, cohort.prior))

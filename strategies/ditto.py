"""Personal models in addition to the global one."""

from dataclasses import replace
from typing import Annotated, ClassVar, Unpack

import numpy as np

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.method import Cohort, FloatArray, Options
from fairbloom.rounds.ranges import NonNegative, Range

from .fedavg import FedAvg
from .strategy import FairStrategy, Tries


class Ditto(FedAvg):
    r"""Ditto: FedAvg, and on each client a personal model that is pulled towards the global one.

    .. math:: c_k = p_k, \qquad
        v_k \leftarrow v_k - \eta \big(\nabla F_k(v_k) + \lambda (v_k - w)\big)

    v_k starts at w, and never leaves the client. w is the received global model, which is the same
    for every lam.

    Source: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
    Algorithm 1, doi:10.48550/arXiv.2012.04221.

    Parameters
    ----------
    lam
        λ: 0 is local training, large values are the global model.
    personal_epochs
        Passes over the local data for the personal model in a round.

    Reductions: the global model is FedAvg's.

    Objective: the mean loss; for each client F(v) + λ/2 ‖v − w‖²
    Good for: clients for which different models are right; newcomers still get a common one.
    Hurts when: clients cannot keep a model between rounds, or take part rarely: their personal
    model then lags behind the global one.
    Memory: none
    Cost: a weighted sum
    """

    tries: ClassVar[Tries] = {"lam": (0.1, 1.0)}
    sums = False
    own_terms = frozenset({"personal_lambda"})

    def __init__(
        self,
        *,
        lam: NonNegative = 1.0,
        personal_epochs: Annotated[int, Range("[1, inf)")] = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.personal_lambda = lam
        self.personal_epochs = personal_epochs

    def terms(self, server_round: int) -> Terms:
        """Return the common terms, with the pull and the epochs of the personal model.

        A pull of 0 is a personal model, too.
        """
        return replace(
            super().terms(server_round),
            personal_lambda=self.personal_lambda,
            personal_epochs=self.personal_epochs,
        )


class Local(FairStrategy):
    r"""Local: each client trains its own model; the baseline that every comparison needs.

    .. math:: c_k = 0, \qquad v_k \leftarrow v_k - \eta \nabla F_k(v_k)

    The global model never changes; comparisons use the personal models.

    Source: the baseline of Li et al., Ditto, ICML 2021, section 4, doi:10.48550/arXiv.2012.04221.

    Objective: each client's own loss
    Good for: measuring what a client gains by taking part: one that is better off by itself
    gains nothing from the others.
    Hurts when: a client has few examples, because it learns nothing from the others. Newcomers get
    no model.
    Memory: none
    Cost: none
    """

    default_weighting = None
    own_terms = frozenset({"personal_lambda"})
    serves = "personal"

    def terms(self, server_round: int) -> Terms:
        """Return the common terms with a personal model without pull, and no global work."""
        return replace(
            super().terms(server_round), personal_lambda=0.0, personal_epochs=1, local_only=True
        )

    def weigh(self, cohort: Cohort) -> FloatArray:
        """Return zeros."""
        return np.zeros(cohort.size)

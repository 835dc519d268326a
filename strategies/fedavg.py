"""The plain average, and the control variates that correct its clients' steps."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np

from fairbloom.protocol.names import CONTROL, STEP_SUM
from fairbloom.rounds.method import Cohort, Decision, FloatArray, Kept, Options
from fairbloom.rounds.options import CHANGING

from .strategy import FairStrategy


class FedAvg(FairStrategy):
    r"""Federated averaging: the mean of the clients' models, by examples or by clients.

    .. math:: c_k = p_k

    With `control_variates=True` the clients correct their local steps as in SCAFFOLD.

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017, Algorithm 1, doi:10.48550/arXiv.1602.05629.

    Reductions: `weighting="uniform"` is c = 1/m.

    Objective: the mean loss
    Good for: clients with similar data, and as the baseline that every other method is compared
    with.
    Hurts when: clients differ: it neglects those with few examples or small gradients.
    Memory: none
    Cost: a weighted sum
    """

    fixed_weights = True
    sums = True

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if self.control_variates:
            self._use_control_variates()

    def weigh(self, cohort: Cohort) -> FloatArray | Decision:
        """Return the prior; kept control variates are not part of the step."""
        c = np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])
        return Decision(c, keep=self._control(cohort)) if self.control_variates else c

    # Control variates: see SCAFFOLD ---------------------------------------------------------------

    def _use_control_variates(self) -> None:
        """Require the sums of the steps' learning rates, and the roster, over which C is a sum."""
        self.check_fit(CHANGING["control_variates"], "control_variates", True)
        self.control_variates = True
        self.requires = self.requires | {"roster"}
        self.needs = self.needs | {STEP_SUM}

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        """Return the server's control variate c = C / Σ n_k, over the roster, if there is one."""
        if not self.control_variates or not self.past.kept:
            return {}
        (kept,) = self.past.kept
        roster = self.past.roster
        weights = self.prior_weights_of([*roster], [*roster.values()])
        total = float(weights.sum())
        return {CONTROL: (kept, 1.0 / total)}

    def _control(self, cohort: Cohort) -> Mapping[Kept, FloatArray]:
        """Keep C + Σ n_k (u_k / H_k − c), over the clients that took a step, with the sent c."""
        H = cohort.metrics[STEP_SUM]
        sizes = [cohort.roster[name] for name in cohort.names]
        stepped = H > 0.0
        n = np.where(stepped, self.prior_weights_of(cohort.names, sizes), 0.0)
        of_updates = np.divide(n, H, out=np.zeros_like(n), where=stepped)
        of_C = 1.0 - n.sum() * cohort.sent.get(CONTROL, 0.0)
        row = np.concatenate([of_updates, np.full(len(cohort.memory), of_C)])
        return {Kept(CONTROL, cohort.round): row}

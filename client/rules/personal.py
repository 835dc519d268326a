"""Ditto's client half: a personal model, trained after the global one and pulled to it."""

import math
from dataclasses import replace

from fairbloom.protocol.terms import PERSONAL_MODEL, Terms
from fairbloom.tasks.optimizers import SGD

from ..states import PERSONAL, ClientStates, Version
from ..work import LocalWork
from .base import Rule


class PersonalModel(Rule):
    """Trains v ← v − η (∇F(v) + lam (v − w)) after the work on the global model, and keeps v.

    Source: Li et al., ICML 2021 (Ditto), Algorithm 1.
    """

    reads = PERSONAL_MODEL
    keeps = PERSONAL

    @classmethod
    def kept_version(cls, states: ClientStates, terms: Terms, *, training: bool) -> Version | None:
        """Return the last personal model; an evaluation measures the one of its own round."""
        return states.find(PERSONAL, before=terms.server_round + (not training))

    def after(self, work: LocalWork) -> LocalWork:
        """Return the work on the personal model: the run's, pulled to the global model.

        The loss is the plain one. SGD has neither momentum nor weight decay; other optimizers keep
        theirs.
        """
        kept = 0.0 if work.optimizer == SGD else 1.0
        return replace(
            work,
            epochs=self.terms.personal_epochs or 1,
            momentum=kept * work.momentum,
            nesterov=False,
            weight_decay=kept * work.weight_decay,
            pull=self.terms.personal_lambda or 0.0,
            in_full=True,
            time_budget=math.inf,
        )

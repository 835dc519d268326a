"""What a client keeps for itself: a personal model, or some parameters of the common one."""

import math
from collections.abc import Collection
from dataclasses import replace

from torch import nn

from fairbloom.errors import ReportableError
from fairbloom.protocol.patterns import PART_WORDS, match_names, split_words
from fairbloom.protocol.terms import (
    FINE_TUNING,
    HEAD_FIRST,
    PERSONAL_MODEL,
    PERSONAL_PARAMETERS,
)
from fairbloom.tasks.models import personal_arrays
from fairbloom.tasks.optimizers import SGD

from ..work import LocalWork
from .base import Rule


class PersonalModel(Rule):
    """Trains v ← v − η (∇F(v) + lam (v − w)) after the work on the global model, and keeps v.

    Source: Li et al., ICML 2021 (Ditto), Algorithm 1.
    """

    reads = PERSONAL_MODEL

    def after(self, work: LocalWork) -> LocalWork:
        """Return the work on the personal model: the run's, pulled to the global model.

        The loss is the plain one. SGD has neither momentum nor weight decay; other optimizers keep
        theirs.
        """
        kept = float(work.optimizer != SGD)
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


class PersonalParameters(Rule):
    """Trains some of the model's parameters with the others, and keeps them.

    Sources: Arivazhagan et al. 2019 (FedPer); Liang et al. 2020 (LG-FedAvg); Li et al., ICLR 2021
    (FedBN).
    """

    reads = PERSONAL_PARAMETERS

    def personal_arrays(self, model: nn.Module, output: str) -> tuple[str, ...]:
        """Return the arrays that the terms name."""
        return personal_arrays(model, self.terms.personal_parameters, output)

    def match(self, names: Collection[str]) -> list[str]:
        """Return those of a model's names that the terms name by patterns."""
        words = self.terms.personal_parameters
        several = PART_WORDS.intersection(split_words(words))
        if several:
            raise ReportableError(
                f"{self}: an app of your own sends arrays without their model: name them by"
                f" patterns, as in 'fc2.*', in place of {min(several)}"
            )
        return match_names(names, words)


class HeadFirst(Rule):
    """Trains what the client keeps with the others fixed, then the others.

    Source: Collins et al., ICML 2021 (FedRep), Algorithm 1.
    """

    reads = HEAD_FIRST

    def work_on_own(self, work: LocalWork) -> LocalWork | None:
        """Return the work with as many epochs as the terms say."""
        return replace(work, epochs=self.terms.head_epochs or 1, steps=None, in_full=True)


class FineTuning(Rule):
    """Trains the evaluated model on the client's own data, and forgets it.

    Source: Yu, Bagdasaryan and Shmatikov 2020 (Salvaging federated learning by local adaptation).
    """

    reads = FINE_TUNING

    def adapt(self, work: LocalWork) -> LocalWork:
        """Return the work with as many epochs as the terms say."""
        return replace(work, epochs=self.terms.fine_tune_epochs, in_full=True)

"""Rules of the steps: a proximal term, another momentum, a full batch, or another number."""

from dataclasses import replace

from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import (
    CLIENT_MOMENTUM,
    FULL_BATCH,
    LOCAL_ONLY,
    PROXIMAL,
    STEP_COUNT,
)

from ..work import LocalWork
from .base import Rule


class ProximalTerm(Rule):
    """Adds (mu/2)‖x − w‖² to the loss, w the received model; any method may ask for it.

    Source: Li et al., MLSys 2020 (FedProx), eq. 2.
    """

    reads = PROXIMAL

    def pull(self) -> float:
        """Return mu."""
        return self.terms.proximal_mu


class LocalOnly(Rule):
    """Takes no step on the global model, as the method Local asks."""

    reads = LOCAL_ONLY

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return no step."""
        return replace(work, idle=True)


class ClientMomentum(Rule):
    """Gives SGD the method's momentum instead of the run's, as FedFa asks."""

    reads = CLIENT_MOMENTUM

    @property
    def momentum(self) -> float | None:
        """The momentum of each step; None: the run's."""
        return self.terms.client_momentum

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return steps with this momentum."""
        return work if self.momentum is None else replace(work, momentum=self.momentum)


class FullBatchStep(Rule):
    """Takes one plain step on all examples: the update is the gradient times the learning rate.

    q-FedSGD and FCFL compute the gradient from it.
    """

    reads = FULL_BATCH

    def check(self, settings: RunSettings) -> None:
        """Raise FairbloomError if steps are not those of plain SGD."""
        beyond = settings.beyond_plain_sgd()
        if beyond:
            raise ReportableError(f"{self} is a step of plain SGD: leave out {beyond}")

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return one step on all examples."""
        return replace(work, epochs=1, batch_size=0, in_full=True)


class StepCount(Rule):
    """Takes a number of steps instead of epochs."""

    reads = STEP_COUNT

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return the steps of the terms' number."""
        return replace(work, steps=self.terms.local_steps)

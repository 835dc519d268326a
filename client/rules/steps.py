"""Rules that ask for other steps than the run's: a momentum, a full batch, a number of steps, or none."""

from dataclasses import replace

from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import CLIENT_MOMENTUM, FULL_BATCH, LOCAL_ONLY, STEP_COUNT

from ..work import LocalWork
from .base import Rule


class LocalOnly(Rule):
    """Takes no step on the global model, as with Local."""

    reads = LOCAL_ONLY

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return no step."""
        return replace(work, idle=True)


class ClientMomentum(Rule):
    """Has SGD take the method's momentum in place of the run's, as FedFa's clients do."""

    reads = CLIENT_MOMENTUM

    @property
    def momentum(self) -> float | None:
        """The momentum of each step; None: the run's."""
        return self.terms.client_momentum

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return steps with this momentum."""
        return work if self.momentum is None else replace(work, momentum=self.momentum)


class FullBatchStep(Rule):
    """Takes one plain step on all examples: its length is the gradient's times the learning rate.

    q-FedSGD and FCFL read the gradient off it.
    """

    reads = FULL_BATCH

    def check(self, settings: RunSettings) -> None:
        """Raise FairbloomError where steps are not those of plain SGD."""
        if beyond := settings.beyond_plain_sgd:
            raise ReportableError(f"{self} is a step of plain SGD: leave out {beyond}")

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return one step on all examples."""
        return replace(work, epochs=1, batch_size=0, in_full=True)


class StepCount(Rule):
    """Takes a number of steps in place of epochs."""

    reads = STEP_COUNT

    def replace_steps(self, work: LocalWork) -> LocalWork:
        """Return this many steps."""
        return replace(work, steps=self.terms.local_steps)

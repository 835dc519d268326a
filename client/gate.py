"""What work a client does, and which numbers leave it: in one process, where none leaves, all."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from fairbloom.protocol.names import NUM_EXAMPLES
from fairbloom.protocol.terms import Terms
from fairbloom.tasks.task import AnyExamples

from .metrics import Measurement
from .states import ClientStates
from .work import LocalWork

# Further notes on the reply that is being made; None if replies are not logged.
NOTED: ContextVar[dict[str, Any] | None] = ContextVar("NOTED", default=None)


def hold_back(words: str) -> None:
    """Note that a number is not sent, and why."""
    noted = NOTED.get()
    if noted is not None and words not in noted.setdefault("held-back", []):
        noted["held-back"].append(words)


class OpenGate:
    """Lets all work and all numbers pass; a subclass is the gate of a device.

    Attributes
    ----------
    min_rows
        Fewest rows behind a number that leaves, or fewest units if examples have units.
    """

    min_rows = 1

    def check_training(self) -> None:
        """Raise DataError if a model would leave that is trained on too few rows."""

    def check_work(self, work: LocalWork, terms: Terms) -> None:
        """Raise ReportableError if the work could make a model that shows single rows."""

    def check_steps(self, work: LocalWork, steps: int, model: nn.Module) -> None:
        """Raise ReportableError if a model would leave after steps on too few rows."""

    def check_carried(self, factors: Tensor) -> None:
        """Raise ReportableError if a step on a disparity is carried by too few rows."""

    def shows_loss(self, work: LocalWork) -> bool:
        """Return whether a message with this work may be told a loss of the model in it."""
        return True

    def pass_count(self, part: str, examples: AnyExamples) -> dict[str, int]:
        """Return the number of train or test examples by its name, {} if it may not leave."""
        return {NUM_EXAMPLES: len(examples)}

    def pass_missing(self) -> dict[str, int]:
        """Return the number of rows that a device's data had before and lack now, by its name."""
        return {}

    def pass_scores(
        self, measurement: Measurement, scores: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Return the scores that may leave, by their names."""
        return scores

    def pass_numbers(
        self, work: str, numbers: Mapping[str, int | float], terms: Terms, states: ClientStates
    ) -> dict[str, int | float]:
        """Return numbers of a model as they leave with a message of this `work` of a round."""
        return dict(numbers)

"""A rule that corrects steps, in one round of one client."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from fairbloom.errors import ReportableError

from ..states import Version
from .arrays import check_arrays, check_finite, copies
from .base import Arrays, GradientOffset, Rule, StepsTaken


class RuleRound:
    """A rule with the hooks `start`, `correct` and `finish`, in one round of one client.

    `origin` is the round of the version that it goes on from, 0 where the client begins again.
    """

    def __init__(
        self, rule: Rule, received: Arrays, kept: Version, sent: Mapping[str, Arrays]
    ) -> None:
        self._rule = rule
        self._received = received
        self.origin = kept.made
        # the other clients are sent them, too
        vectors = {record: copies(arrays) for record, arrays in sent.items()}
        self._state = self._rule.start(copies(received), copies(kept.state), vectors)

    @property
    def shift(self) -> Arrays:
        """What is added to the gradient of each step, empty where the rule corrects it in another way."""
        return self._rule.shift(self._state) if isinstance(self._rule, GradientOffset) else {}

    def correct(self, gradients: Sequence[Tensor], step: int) -> list[Tensor]:
        """Return the corrected gradients, both in the model's order.

        Raise FairbloomError where the rule returns others.
        """
        by_name = dict(zip(self._received, gradients, strict=True))
        corrected = self._rule.correct(by_name, self._state, step)
        if corrected is not by_name:
            check_arrays(corrected, self._received, f"{self._rule}: what correct returns")
        return [corrected[name] for name in self._received]

    def finish(self, trained: Arrays, steps: StepsTaken) -> tuple[Arrays, dict[str, Tensor]]:
        """Return the trainable parameters to reply, and what is kept.

        Raise FairbloomError where these are not finite.
        """
        finished = self._rule.finish(copies(self._received), trained, self._state, steps)
        if not (isinstance(finished, tuple) and len(finished) == 2):
            raise ReportableError(
                f"{self._rule}: finish must return two, the arrays to reply and those to keep"
            )
        replied, kept = finished
        if replied is not trained:
            check_arrays(replied, self._received, f"{self._rule}: what finish has the client reply")
            check_finite(replied, f"{self._rule}: what finish has the client reply")
        if not isinstance(kept, Mapping) or not all(
            isinstance(each, Tensor) for each in kept.values()
        ):
            raise ReportableError(
                f"{self._rule}: what finish has the client keep must be tensors by name"
            )
        if not all(isinstance(name, str) for name in kept):
            raise ReportableError(
                f"{self._rule}: what finish has the client keep must have words for names"
            )
        check_finite(kept, f"{self._rule}: what finish has the client keep")
        return replied, dict(kept)

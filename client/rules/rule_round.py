"""A rule that corrects steps, in one round of one client."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from fairbloom.errors import ReportableError
from fairbloom.logs import log
from fairbloom.protocol.terms import Terms

from ..local import LocalClient
from ..states import RULE, StateDict, Version
from ..work import StepsTaken
from .arrays import check_arrays, check_finite, copies
from .base import Arrays, GradientOffset, Rule


class RuleRound:
    """A rule with the hooks `start`, `correct` and `finish`, in one round of one client.

    `origin` is the round of the stored state that it resumes from, 0 if it begins without state.
    `finished` has what `finish` returned, after its description.
    """

    def __init__(
        self, rule: Rule, received: Arrays, kept: Version, sent: Mapping[str, Arrays]
    ) -> None:
        self._rule = rule
        self._received = received
        self.origin = kept.made
        self.finished: list[tuple[str, Arrays]] = []
        # copies, because all clients of a process share the sent vectors
        self._state = self._rule.start(
            copies(received),
            copies(kept.state),
            {record: copies(arrays) for record, arrays in sent.items()},
        )

    @property
    def shift(self) -> Arrays:
        """The offset of each step's gradient, empty if the rule has no constant offset."""
        return self._rule.shift(self._state) if isinstance(self._rule, GradientOffset) else {}

    def correct(self, gradients: Sequence[Tensor], step: int) -> list[Tensor]:
        """Return the corrected gradients, both in the model's order.

        Raise FairbloomError if their names or shapes differ.
        """
        by_name = dict(zip(self._received, gradients, strict=True))
        corrected = self._rule.correct(by_name, self._state, step)
        if corrected is not by_name:
            check_arrays(corrected, self._received, f"{self._rule}: what correct returns")
        return [corrected[name] for name in self._received]

    def finish(self, trained: Arrays, steps: StepsTaken) -> tuple[Arrays, dict[str, Tensor]]:
        """Return the trainable parameters to reply, and the state to store.

        Raise FairbloomError if they are malformed. The caller checks that `finished` is finite.
        """
        finished = self._rule.finish(copies(self._received), trained, self._state, steps)
        if not isinstance(finished, tuple) or len(finished) != 2:
            raise ReportableError(
                f"{self._rule}: finish must return two, the arrays to reply and those to keep"
            )
        replied, kept = finished
        if replied is not trained:
            called = f"{self._rule}: what finish has the client reply"
            check_arrays(replied, self._received, called)
            self.finished.append((called, replied))
        called = f"{self._rule}: what finish has the client keep"
        if not isinstance(kept, Mapping) or not all(
            isinstance(array, Tensor) for array in kept.values()
        ):
            raise ReportableError(f"{called} must be tensors by name")
        if not all(isinstance(name, str) for name in kept):
            raise ReportableError(f"{called} must have words for names")
        self.finished.append((called, kept))
        return replied, dict(kept)


def start_rule(
    client: LocalClient,
    rule: Rule,
    received: StateDict,
    terms: Terms,
    sent: Mapping[str, StateDict],
) -> RuleRound:
    """Return the round of a rule that corrects steps, begun from the client's stored state."""
    version = client.states.of_rule(terms)
    trainable = {name: received[name] for name, _ in client.trainable()}
    expected = {name: array.shape for name, array in trainable.items()}
    stored = {name: array.shape for name, array in version.state.items()}
    if version.made and isinstance(rule, GradientOffset) and stored != expected:
        log.warning(
            "the state that client %s keeps belongs to another model: the client begins again"
            " without state",
            client.name,
        )
        version = Version(0, {})
    return RuleRound(rule, trainable, version, sent)


def finish_rules(
    training: Sequence[tuple[LocalClient, RuleRound, Arrays, StepsTaken]], terms: Terms
) -> list[Arrays]:
    """Finish the clients' rounds of a rule, each with its trained parameters and its steps.

    Store the clients' new states, and return the parameters that each of them replies.
    """
    finished = [started.finish(trained, steps) for _, started, trained, steps in training]
    check_finite(part for _, started, _, _ in training for part in started.finished)
    for (client, started, _, _), (_, kept) in zip(training, finished, strict=True):
        client.states.keep(RULE, terms.server_round, kept, started.origin)
    return [replied for replied, _ in finished]

"""Whether a run learns: its steps, its unchanged replies and its evaluations are counted."""

from collections.abc import Sequence

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.text import text_if

from .clients import TrainReplies
from .in_progress import RoundInProgress, explain_unusable
from .method import Method

REMEDY = "Correct that and continue, or set unused-rounds = 0 to continue regardless"


# Why a reply may be unchanged.
NO_STEP = (
    "took no step on the parameters that it received: its reply is the model that was sent. A"
    " training function must train the model that it is given, not a copy, and call"
    " optimizer.step()"
)

# Names that apps give the learning rate in `train_config`.
RATES = ("lr", "learning-rate", "learning_rate")


class NothingLearnedError(FairbloomError):
    """A run that learns nothing, or is never evaluated; the message has the reason and remedy."""


class Watcher:
    """Raises NothingLearnedError after too many rounds in which a run learns nothing.

    The counts are in the run's state, and the limit is the method's `unused_rounds`.
    """

    def __init__(self, method: Method, num_rounds: int | None) -> None:
        self._method = method
        self._num_rounds = num_rounds
        self._skip_reason = "its rounds were skipped"
        self._evaluation_fault = "no evaluation could be used"
        # Whether unchanged replies are logged already: of all clients, and of some.
        self._logged_unchanged = {True: False, False: False}

    def check_learned(self) -> None:
        """Raise NothingLearnedError when a run is over without a step, or without an evaluation."""
        state = self._method.run_state
        if not self._method.unused_rounds or not self._num_rounds:
            return
        if state.steps == 0:
            raise NothingLearnedError(
                f"no round of {self._num_rounds} took a step: {self._skip_reason}. {REMEDY}"
            )
        if state.unevaluated and not state.evaluated_round:
            raise NothingLearnedError(
                f"no round of {self._num_rounds} could be evaluated: {self._evaluation_fault}."
                f" {REMEDY}"
            )

    def check_step(self, number: int, skip_reason: str) -> None:
        """Raise NothingLearnedError if a skipped round is one too many; "" is no skipped one."""
        skipped = self._method.run_state.skipped
        limit = self._method.unused_rounds
        self._skip_reason = skip_reason
        if limit and skipped >= limit:
            raise NothingLearnedError(
                f"the run has learned nothing for {skipped} rounds: in round {number},"
                f" {skip_reason}. {REMEDY}"
            )

    def check_unchanged(self, current: RoundInProgress, unchanged: Sequence[str]) -> None:
        """Log clients with unchanged replies once.

        Raise NothingLearnedError after `unused_rounds` rounds if no reply of the run has changed a
        parameter.
        """
        if not unchanged:
            return
        state = self._method.run_state
        limit = self._method.unused_rounds
        everyone = len(unchanged) == len(current.participants)
        if limit and not state.changed and state.unchanged >= limit:
            raise NothingLearnedError(
                f"the run has learned nothing for {state.unchanged} rounds: no reply has"
                f" changed a parameter. Client {unchanged[0]} {NO_STEP}. {REMEDY}"
            )
        if not self._logged_unchanged[everyone]:
            self._logged_unchanged[everyone] = True
            others = text_if(len(unchanged) > 1, f", as {len(unchanged) - 1} others,")
            log.warning("round %d: client %s%s %s", current.number, unchanged[0], others, NO_STEP)

    def check_evaluation(self, current: RoundInProgress) -> None:
        """Raise NothingLearnedError after too many rounds without a usable evaluation."""
        if current.evaluation.names:
            return
        unevaluated = self._method.run_state.unevaluated
        self._evaluation_fault = explain_unusable(current.evaluation, len(current.evaluators))
        limit = self._method.unused_rounds
        if limit and unevaluated >= limit:
            raise NothingLearnedError(
                f"no evaluation could be used for {unevaluated} evaluated rounds: in round"
                f" {current.number}, {self._evaluation_fault}. {REMEDY}"
            )


def find_unchanged(current: RoundInProgress, replies: TrainReplies) -> tuple[bool, Sequence[str]]:
    """Return whether any reply has changed a parameter.

    Also return the clients with a reply that has changed none, without a known reason.
    """
    if current.terms.local_only or not replies.updates.layout.size:
        return False, ()
    norms = replies.updates.norms
    if norms.all():  # a usual round needs no more
        return True, ()
    # A server may send a learning rate of 0 on purpose, as in a warm-up.
    if any(current.terms.others.get(name) == 0 for name in RATES):
        return False, ()
    by_client = dict(zip(replies.names, norms.tolist(), strict=True))
    unchanged = [name for name in by_client if not by_client[name] and name not in replies.at_rest]
    return any(by_client.values()), unchanged

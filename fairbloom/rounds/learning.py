"""Whether a run learns: its steps, its unchanged replies and its evaluations are counted."""

from collections.abc import Sequence

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.text import text_if

from .clients import TrainReplies
from .in_progress import RoundInProgress, explain_unusable
from .method import Method

REMEDY = "Correct that and continue, or let runs go on regardless by unused-rounds = 0"


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
    """Counts rounds in which a method learns nothing; raises NothingLearnedError after too many.

    The counts are in the method's `progress`, and its `unused_rounds` is the limit.
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
        progress = self._method.progress
        if not self._method.unused_rounds or not self._num_rounds:
            return
        if progress.steps == 0:
            raise NothingLearnedError(
                f"no round of {self._num_rounds} took a step: {self._skip_reason}. {REMEDY}"
            )
        if progress.unevaluated and not progress.evaluated:
            raise NothingLearnedError(
                f"no round of {self._num_rounds} could be evaluated: {self._evaluation_fault}."
                f" {REMEDY}"
            )

    def count_step(self, number: int, skip_reason: str) -> None:
        """Count a step, or a skipped round; raise NothingLearnedError after too many of these."""
        progress = self._method.progress
        limit = self._method.unused_rounds
        self._skip_reason = skip_reason
        if not skip_reason:
            progress.steps += 1
            progress.skipped = 0
            return
        progress.skipped += 1
        if limit and progress.skipped >= limit:
            raise NothingLearnedError(
                f"the run has learned nothing for {progress.skipped} rounds: in round {number},"
                f" {skip_reason}. {REMEDY}"
            )

    def count_unchanged(self, current: RoundInProgress, unchanged: Sequence[str]) -> None:
        """Log clients with unchanged replies once.

        Raise NothingLearnedError after `unused_rounds` rounds if no reply of the run has changed a
        parameter.
        """
        if not unchanged:
            return
        progress = self._method.progress
        limit = self._method.unused_rounds
        everyone = len(unchanged) == len(current.participants)
        if not progress.changed:
            progress.unchanged += 1
            if limit and progress.unchanged >= limit:
                raise NothingLearnedError(
                    f"the run has learned nothing for {progress.unchanged} rounds: no reply has"
                    f" changed a parameter. Client {unchanged[0]} {NO_STEP}. {REMEDY}"
                )
        if not self._logged_unchanged[everyone]:
            self._logged_unchanged[everyone] = True
            others = text_if(len(unchanged) > 1, f", as {len(unchanged) - 1} others,")
            log.warning("round %d: client %s%s %s", current.number, unchanged[0], others, NO_STEP)

    def count_evaluation(self, current: RoundInProgress) -> None:
        """Note whether a round was evaluated.

        Raise NothingLearnedError after too many rounds without a usable evaluation.
        """
        progress = self._method.progress
        if current.evaluation.names:
            progress.evaluated = current.number
            progress.unevaluated = 0
            return
        progress.unevaluated += 1
        self._evaluation_fault = explain_unusable(current.evaluation, len(current.evaluators))
        limit = self._method.unused_rounds
        if limit and progress.unevaluated >= limit:
            raise NothingLearnedError(
                f"no evaluation could be used for {progress.unevaluated} evaluated rounds: in round"
                f" {current.number}, {self._evaluation_fault}. {REMEDY}"
            )


def find_unchanged(
    method: Method, current: RoundInProgress, replies: TrainReplies
) -> Sequence[str]:
    """Return the clients with a reply that has changed no parameter, without a known reason.

    Note whether any reply has changed one.
    """
    if current.terms.local_only or not replies.updates.layout.size:
        return ()
    norms = replies.updates.norms
    if norms.all():  # a usual round needs no more
        method.progress.changed = True
        return ()
    # A server may send a learning rate of 0 on purpose, as in a warm-up.
    if any(current.terms.others.get(name) == 0 for name in RATES):
        return ()
    by_client = dict(zip(replies.names, norms.tolist(), strict=True))
    honest = {name: each for name, each in by_client.items() if name not in replies.hostile}
    method.progress.changed |= any(honest.values())
    return [name for name, each in honest.items() if not each and name not in replies.at_rest]

"""What a client measures, in one table: each metric, by its name on the wire, of which model and on which examples."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fairbloom.protocol import names as wire
from fairbloom.protocol.scores import name_in_group
from fairbloom.protocol.terms import Terms
from fairbloom.tasks import Splits
from fairbloom.tasks.task import AnyExamples

from .device import in_double

RECEIVED = "received"
TRAINED = "trained"
PERSONAL = "personal"
ALONE = "alone"
"""The models of a client: as it came, after local work, the client's personal one, and the best
that it met when it trained alone."""

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
"""The examples of a client, as `Splits` calls them."""


class Measurement(NamedTuple):
    """The task's loss and scores of one model on some of a client's examples.

    In `pattern`, the name on the wire, {} stands for loss or a score. `requested` says that clients
    measure it only where the terms ask for it.
    """

    pattern: str
    model: str
    examples: str
    requested: bool = True

    @property
    def by_group(self) -> bool:
        """Whether its scores are measured in each group of the examples as well, where the task has groups."""
        return self.examples != TRAIN

    def requests(self, measure: tuple[str, ...]) -> Mapping[str, str]:
        """Return those of these names that are of this measurement, and the loss or score that each is about."""
        return _find_scores(self.pattern, measure)

    def is_asked(self, terms: Terms) -> bool:
        """Return whether clients that have such examples measure it on these terms."""
        if self.requested:
            return bool(self.requests(terms.measure))
        return self.model != PERSONAL or terms.has_personal_models

    def applies(self, terms: Terms, splits: Splits) -> bool:
        """Return whether a client with these examples measures it on these terms."""
        return self.is_asked(terms) and (self.requested or bool(self.of(splits)))

    def of(self, splits: Splits) -> AnyExamples:
        """Return the examples that it is measured on, where it applies."""
        examples: AnyExamples = getattr(splits, self.examples)
        return examples

    def names(self, scores: Iterable[str], measure: tuple[str, ...] = ()) -> dict[str, str]:
        """Return what a client reports of its loss and these scores: by the name on the wire, which of them it is."""
        if not self.requested:
            return {self.pattern.format(score): score for score in scores}
        asked = self.requests(measure)
        there = frozenset(scores)
        return {name: score for name, score in asked.items() if score in there}


@lru_cache(maxsize=64)  # each client of each round asks
def _find_scores(pattern: str, measure: tuple[str, ...]) -> Mapping[str, str]:
    before, after = pattern.split("{}")
    names = [name for name in measure if name.startswith(before) and name.endswith(after)]
    return {name: name.removeprefix(before).removesuffix(after) for name in names}


BEFORE = Measurement(f"{{}}-{wire.BEFORE}", RECEIVED, TRAIN)
AFTER = Measurement(f"{{}}-{wire.AFTER}", TRAINED, TRAIN)
OF_BASELINE = Measurement(f"{{}}-{wire.BASELINE}", ALONE, TRAIN)
ON_TESTS = Measurement("{}", RECEIVED, TEST, requested=False)
ON_TRAINING = Measurement(f"{wire.TRAIN}-{{}}", RECEIVED, TRAIN)
OF_TRAINING = (BEFORE, AFTER, OF_BASELINE)
"""What is measured where a client trains."""

OF_EVALUATION = (
    ON_TESTS,
    ON_TRAINING,
    Measurement(f"{{}}-{wire.VALIDATION}", RECEIVED, VALIDATION, requested=False),
    Measurement(f"{{}}-{wire.PERSONAL}", PERSONAL, TEST, requested=False),
    Measurement(f"{{}}-{wire.VALIDATION}-{wire.PERSONAL}", PERSONAL, VALIDATION, requested=False),
)
"""What is measured where it evaluates, in the order of a reply."""


BY_GROUP = name_in_group("{}", "{}", "{}")
"""What a client's counts and scores by group are called, of whatever measurement is `by_group`."""


class WorkDone(NamedTuple):
    """Finished local work: its learning rate, the parameters before and after it in pairs, and the sum of its rates."""

    learning_rate: Callable[[], float]
    changes: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    rate_sum: Callable[[], float]

    def update_norm(self) -> float:
        """Return ‖w_k − w‖, the norm of all that the work has changed."""
        moves = [new.detach() - old.to(new.device) for old, new in self.changes()]
        norms = [torch.linalg.vector_norm(in_double(move)) for move in moves]
        return float(torch.linalg.vector_norm(torch.stack(norms)))


WORK_METRICS: Mapping[str, Callable[[WorkDone], float]] = {
    wire.LEARNING_RATE: lambda done: done.learning_rate(),
    wire.UPDATE_NORM: WorkDone.update_norm,
    wire.STEP_SUM: lambda done: done.rate_sum(),
}
"""What is reported of local work itself, where the terms ask for it."""

GROUP_COUNTS = (*wire.POSITIVES, *wire.HITS)
"""The counts among `BETWEEN_GROUPS`, which clients report where the terms ask for them; the others
need `disparity`."""

ALL_METRICS = frozenset(
    {
        *(each.pattern for each in (*OF_TRAINING, *OF_EVALUATION)),
        *WORK_METRICS,
        *wire.BETWEEN_GROUPS,
        BY_GROUP,
    }
)
"""All that clients measure: patterns of measurements, and names."""


def requested_metrics(
    measure: Iterable[str], scores: Mapping[str, float], done: WorkDone
) -> dict[str, float]:
    """Return what the terms ask for of local work, in this order; unknown names are left out."""
    found = {}
    for name in measure:
        if name in scores:
            found[name] = scores[name]
        elif name in WORK_METRICS:
            found[name] = WORK_METRICS[name](done)
    return found

"""The metrics of clients: their names on the wire, and the model and examples of each."""

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

# The models of a client: the received one, the same with the arrays that the client keeps, the
# trained one, its personal one, and its baseline, the best that it reaches without the others.
RECEIVED = "received"
OWN = "own"
TRAINED = "trained"
PERSONAL = "personal"
ALONE = "alone"

# The examples of a client: fields of `Splits`.
TRAIN = "train"
VALIDATION = "validation"
TEST = "test"


class Measurement(NamedTuple):
    """The task's loss and scores of one model on some of a client's examples.

    In `pattern`, the name on the wire, {} is replaced by loss or the name of a score. If it is
    `requested`, clients measure it only if the terms ask for it.
    """

    pattern: str
    model: str
    examples: str
    requested: bool = True

    @property
    def by_group(self) -> bool:
        """Whether its scores are also measured in each group of the examples, if there are any."""
        return self.examples != TRAIN

    def requests(self, measure: tuple[str, ...]) -> Mapping[str, str]:
        """Return the names that belong to this measurement, each with its loss or score."""
        return _find_scores(self.pattern, measure)

    def is_asked(self, terms: Terms) -> bool:
        """Return whether clients with such examples measure it on these terms."""
        if self.requested:
            return bool(self.requests(terms.measure))
        return self.model != PERSONAL or terms.has_personal_models

    def applies(self, terms: Terms, splits: Splits) -> bool:
        """Return whether a client with these examples measures it on these terms."""
        return self.is_asked(terms) and (self.requested or bool(self.of(splits)))

    def model_of(self, terms: Terms) -> str:
        """Return the model that it measures on these terms.

        Methods weigh by what is requested, so it is measured as the client trains.
        """
        if self.requested and self.model == RECEIVED and terms.keeps_arrays:
            return OWN
        return self.model

    def of(self, splits: Splits) -> AnyExamples:
        """Return the examples that it is measured on."""
        examples: AnyExamples = getattr(splits, self.examples)
        return examples

    def names(self, scores: Iterable[str], measure: tuple[str, ...] = ()) -> dict[str, str]:
        """Return the names on the wire of these scores, each with its score."""
        if not self.requested:
            return {self.pattern.format(score): score for score in scores}
        asked = self.requests(measure)
        measured = frozenset(scores)
        return {name: score for name, score in asked.items() if score in measured}


@lru_cache(maxsize=64)  # called once per client and round
def _find_scores(pattern: str, measure: tuple[str, ...]) -> Mapping[str, str]:
    before, after = pattern.split("{}")
    return {
        name: name.removeprefix(before).removesuffix(after)
        for name in measure
        if name.startswith(before) and name.endswith(after)
    }


# The measurements of a client that trains.
BEFORE = Measurement(f"{{}}-{wire.BEFORE}", RECEIVED, TRAIN)
AFTER = Measurement(f"{{}}-{wire.AFTER}", TRAINED, TRAIN)
OF_BASELINE = Measurement(f"{{}}-{wire.BASELINE}", ALONE, TRAIN)
ON_TESTS = Measurement("{}", RECEIVED, TEST, requested=False)
ON_TRAINING = Measurement(f"{wire.TRAIN}-{{}}", RECEIVED, TRAIN)
OF_TRAINING = (BEFORE, AFTER, OF_BASELINE)

# The measurements of a client that evaluates, in the order of a reply.
OF_EVALUATION = (
    ON_TESTS,
    ON_TRAINING,
    Measurement(f"{{}}-{wire.VALIDATION}", RECEIVED, VALIDATION, requested=False),
    Measurement(f"{{}}-{wire.PERSONAL}", PERSONAL, TEST, requested=False),
    Measurement(f"{{}}-{wire.VALIDATION}-{wire.PERSONAL}", PERSONAL, VALIDATION, requested=False),
)


# The pattern of counts and scores by group, for every measurement that is `by_group`.
BY_GROUP = name_in_group("{}", "{}", "{}")


class WorkDone(NamedTuple):
    """Functions that return numbers of finished local work.

    `changes` returns pairs of each parameter before and after the work.
    """

    learning_rate: Callable[[], float]
    changes: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    rate_sum: Callable[[], float]

    def norm_on_device(self) -> Tensor:
        """Return ‖w_k − w‖, the norm of the update, of shape (): the device is not waited for."""
        norms = [
            torch.linalg.vector_norm(in_double(new.detach() - old.to(new.device)))
            for old, new in self.changes()
        ]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm


# The metrics of local work itself, reported if the terms ask for them.
WORK_METRICS: Mapping[str, Callable[[WorkDone], float]] = {
    wire.LEARNING_RATE: lambda done: done.learning_rate(),
    wire.UPDATE_NORM: lambda done: float(done.norm_on_device()),
    wire.STEP_SUM: lambda done: done.rate_sum(),
}

# The metrics that every engine of Fairbloom's clients has: patterns of measurements, and names.
ALL_METRICS = frozenset(
    {
        *(measurement.pattern for measurement in (*OF_TRAINING, *OF_EVALUATION)),
        *WORK_METRICS,
        *wire.BETWEEN_GROUPS,
        BY_GROUP,
    }
)


def requested_metrics(
    measure: Iterable[str], scores: Mapping[str, float], done: Callable[[], WorkDone]
) -> dict[str, float]:
    """Return the metrics that the terms ask for, in their order; unknown names are left out."""
    metrics = {}
    for name in measure:
        if name in scores:
            metrics[name] = scores[name]
        elif name in WORK_METRICS:
            metrics[name] = WORK_METRICS[name](done())
    return metrics

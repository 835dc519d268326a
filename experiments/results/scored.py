"""Over which clients each score of a run is a mean, and why it lacks the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbloom.protocol.scores import WHY_UNDEFINED, Score

from .run import Run, measures


@dataclass(frozen=True)
class Scored:
    """A score under one kind of model."""

    score: Score
    model: str  # "global" or "personal"
    values: Mapping[str, float]  # by client
    lacking: Mapping[str, str]  # why the other clients lack it
    unasked: int = 0  # how many more there are, which were not asked to evaluate

    @property
    def clients(self) -> int:
        """How many clients there are, with the score or without."""
        return len(self.values) + len(self.lacking) + self.unasked

    def sentences(self) -> Iterator[str]:
        """Yield over which clients it is a mean, a sentence a reason; nothing where all have it."""
        name = self.score.words if self.model == "global" else f"{self.score.words} of personal models"
        over = f"{name} is the mean of {len(self.values)} of {self.clients} clients"
        for reason in dict.fromkeys(self.lacking.values()):
            names = ", ".join(name for name, why in self.lacking.items() if why == reason)
            yield f"{over}; without a test {self.score.words} ({reason}): {names}"
        if self.unasked and not self.lacking:
            yield f"{over}, those that were asked to evaluate"

    def as_row(self) -> dict[str, Any]:
        """Return it in plain values: its measures of fairness, and over which clients they are."""
        return {
            "score": self.score.name,
            "model": self.model,
            **measures(self.values, self.score),
            "clients": len(self.values),
            "of_clients": self.clients,
            "without": dict(self.lacking),
        }


def scores_of(run: Run) -> list[Scored]:
    """Return each score that a client has after the last evaluated round, under each kind of model that serves it."""
    found = []
    tested = run.test_examples()
    for score in run.scores:
        for model in run.models:
            if values := run.final(score, model):
                why = WHY_UNDEFINED.get(score.name, "it has no finite value there")
                # A client without test examples, or one that was refused, missing or offline, has no score at all.
                untested = "not tested in the last round"
                lacking = {name: why if name in tested else untested for name in run.without(score, model)}
                found.append(Scored(score, model, values, lacking, run.unasked))
    return found


def sentences_of(found: Sequence[Scored]) -> list[str]:
    """Return over which clients each score is a mean; once where personal models lack it for the same clients."""
    shown: list[str] = []
    for place, each in enumerate(found):
        if not any((each.score, each.lacking) == (before.score, before.lacking) for before in found[:place]):
            shown += each.sentences()
    return shown

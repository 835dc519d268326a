"""How a run's model serves a site that took no part in it, beside how it serves the run's clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fairbloom.protocol.scores import Score
from fairbloom.server.run_folder.files import CLIENTS

from .caveats import FEWEST_EXAMPLES
from .presentation import Shown
from .run import load


@dataclass(frozen=True)
class Evaluation(Shown):
    """What a site's test examples say of a run's model, and of a personal one that was made of it.

    Attributes
    ----------
    run
        The run folder.
    client
        What the site is called.
    model
        Which model of the run: "last" or "best".
    train_examples, test_examples, test_classes
        How many examples the site has to train on and to test on, and how many classes there are among the latter;
        None where targets are no classes.
    scores
        What is measured; sites are compared by the first.
    before, after
        The scores by name under the run's model, and under the personal one; `after` is empty where there is none.
    others
        Of each score the numbers of the run's clients under the final model, by their names; empty where the folder
        does not have them.
    interval
        The 95 % interval of the first score under the run's model, by so few test examples; None where it has none.
    p_values
        By the names of scores, how probable such a difference between the two models would be by chance.
    epochs, strength
        How the personal model was trained: passes over the training examples, and the pull to the run's model.
    kept
        The folder that `fairbloom predict` reads; None where nothing was kept.
    """

    run: Path
    client: str
    model: str
    train_examples: int
    test_examples: int
    test_classes: int | None
    scores: tuple[Score, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    others: Mapping[str, Mapping[str, float]]
    interval: tuple[float, float] | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    strength: float = 0.0
    kept: Path | None = None

    @property
    def score(self) -> Score:
        """The score by which sites are compared."""
        return self.scores[0]

    @property
    def served_worse(self) -> tuple[str, ...]:
        """The run's clients that its model serves worse than it would serve this site, the worst first."""
        own = self.before.get(self.score.name)
        others = self.others.get(self.score.name, {})
        worse = {name: self.score.better(own, value) for name, value in others.items() if own is not None}
        return tuple(sorted((name for name, by in worse.items() if by > 0.0), key=lambda name: -worse[name]))

    @property
    def would_be_worst(self) -> bool | None:
        """Whether no client of the run is served worse; None where the test examples do not decide it.

        They decide it where the worst served client's number lies outside the interval of this site's.
        """
        if not self.others.get(self.score.name) or self.interval is None or self.test_examples < FEWEST_EXAMPLES:
            return None
        worst = self._spread(self.score)[0]
        gains = [self.score.better(end, worst) for end in self.interval]
        return None if min(gains) <= 0.0 <= max(gains) else max(gains) < 0.0

    def decides(self, score: str) -> bool:
        """Return whether the test examples decide by a score which of the two models is better."""
        return self.test_examples >= FEWEST_EXAMPLES and self.p_values.get(score, 1.0) < 0.05

    def sentences(self) -> Iterator[str]:
        """Yield what the numbers mean, in words."""
        yield from self._verdict()
        yield from self._caveats()

    def rows(self) -> list[tuple[str, int | None, Mapping[str, float]]]:
        """Return the rows of the table: whose they are, over how many test examples, and the scores by name."""
        rows: list[tuple[str, int | None, Mapping[str, float]]] = []
        rows.append((f"{self.client}, the run's model", self.test_examples, self.before))
        if self.after:
            rows.append((f"{self.client}, its personal model", self.test_examples, self.after))
        for word, place in (("worst", 0), ("median", 1), ("best", 2)):
            values = {score.name: self._spread(score)[place] for score in self.scores if self.others.get(score.name)}
            if values:
                count = len(self.others.get(self.score.name, ()))
                rows.append((f"{word} of the run's {count} clients", None, values))
        return rows

    @property
    def as_json(self) -> dict[str, Any]:
        """Everything, in plain values."""
        return {
            "run": str(self.run),
            "client": self.client,
            "model": self.model,
            "train_examples": self.train_examples,
            "test_examples": self.test_examples,
            "test_classes": self.test_classes,
            "score": self.score.name,
            "before": dict(self.before),
            "interval": self.interval,
            "after": dict(self.after) or None,
            "p_values": dict(self.p_values) or None,
            "epochs": self.epochs or None,
            "lambda": self.strength if self.after else None,
            "clients": {name: dict(values) for name, values in self.others.items()},
            "would_be_worst": self.would_be_worst,
            "served_worse": list(self.served_worse),
            "said": list(self.sentences()),
            "kept": None if self.kept is None else str(self.kept),
        }

    def __repr__(self) -> str:
        """Return it in a line."""
        name, score = self.score.name, self.score
        found = [score.written(each[name]) for each in (self.before, self.after) if name in each]
        return f"Evaluation({str(self.run)!r} at {self.client}, {name}: {' -> '.join(found) or 'none'})"

    def _spread(self, score: Score) -> tuple[float, float, float]:
        """Return the worst, median and best number of the run's clients."""
        values = sorted(self.others[score.name].values(), reverse=not score.higher_is_better)
        return values[0], median(values), values[-1]

    def _verdict(self) -> Iterator[str]:
        name, others = self.score.name, self.others.get(self.score.name, {})
        if name not in self.before:
            yield f"The {name} has no meaning on the test examples of {self.client}."
            return
        if not others:
            yield "The folder does not say how the model serves the run's clients: take the run folder to compare."
        elif self.would_be_worst:
            worst = self._spread(self.score)[0]
            yield (
                f"{self.client} would be the worst served of {len(others) + 1}: {name} "
                f"{self.score.written(self.before[name])}, where the worst of the run's clients has "
                f"{self.score.written(worst)}."
            )
        elif self.would_be_worst is None:
            yield (
                f"Whether {self.client} would be the worst served of {len(others) + 1} cannot be decided: its {name} "
                f"is {self.score.written(self.before[name])}{self._within()}, and the worst of the run's clients has "
                f"{self.score.written(self._spread(self.score)[0])}."
            )
        else:
            yield (
                f"{self.client} would not be the worst served: {len(self.served_worse)} of the run's {len(others)} "
                f"clients have a worse {name}."
            )
        if self.after and name in self.after:
            yield from self._personal()

    def _within(self) -> str:
        """Return in which interval the site's score lies."""
        if self.interval is None:
            return ""
        low, high = (self.score.written(end) for end in self.interval)
        return f" ({low} to {high} by {self.test_examples} test examples)"

    def _personal(self) -> Iterator[str]:
        """Yield whether the personal model is better, and which other scores say the opposite."""
        gains = {each: each.better(self.after[each.name], self.before[each.name]) for each in self._both}
        model = (
            f"personal model ({self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}, lambda = {self.strength:g})"
        )
        if self.decides(self.score.name):
            word = "better" if gains[self.score] > 0.0 else "worse"
            yield f"Its {model} is {word} by {self.score.name}: {self._change(self.score)}."
        else:
            which = f"Whether its {model} is better or worse by {self.score.name} cannot be decided"
            yield f"{which} by {self.test_examples} test examples: {self._change(self.score)}."
        for other in self._both[1:]:
            if gains[other] * gains[self.score] < 0.0:
                yield f"By {other.name} it is the other way: {self._change(other)}."

    @property
    def _both(self) -> list[Score]:
        """The scores that both models have."""
        return [each for each in self.scores if each.name in self.before and each.name in self.after]

    def _change(self, score: Score) -> str:
        """Return a score before and after, with the p-value of the difference."""
        chance = f" (p = {self.p_values[score.name]:.2g})" if score.name in self.p_values else ""
        return f"{score.written(self.before[score.name])} before, {score.written(self.after[score.name])} after{chance}"

    def _caveats(self) -> Iterator[str]:
        count = self.test_examples
        if count < FEWEST_EXAMPLES:
            verb = "is 1 test example" if count == 1 else f"are {count} test examples"
            yield f"There {verb}: the numbers mean nothing. Take more rows, or a larger test-share in the next run."
        elif self.interval is not None:
            places = ".0f" if self.score.percent else ".3g"
            ends = " and ".join(f"{end:{places}}" for end in self.interval)
            yield (
                f"By {count} test examples, the {self.score.name} of the run's model lies between {ends}"
                f"{' %' if self.score.percent else ''} (95 % interval): what differs by less may be chance."
            )
        if self.test_classes == 1:
            yield f"All test examples are of one class: the {self.score.name} says nothing about the other classes."
        if self.model == "best":
            yield "The run's clients are listed by the final model, and this site by the best one."


def scores_of_clients(folder: Path, scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """Return of each score the numbers of a run's clients under its final global model, by name.

    They are empty where the folder does not have them: a client keeps none of the others' numbers.
    """
    if not CLIENTS.exists_in(folder):
        return {}
    run = load(folder)
    there = {score.name for score in run.scores}
    found = {score.name: run.final(score, "global") for score in scores if score.name in there}
    return {name: values for name, values in found.items() if values}

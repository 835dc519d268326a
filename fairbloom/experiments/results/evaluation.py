"""A run's model on the data of a site that took no part in the run, compared with its clients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.protocol.scores import ACCURACY, Score

from .caveats import BALANCED, FEWEST_EXAMPLES
from .presentation import Shown


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """The scores of a run's model on a site's test examples.

    Attributes
    ----------
    site
        The name of the site.
    train_examples, test_examples
        The site's numbers of training and test examples.
    scores
        The scores that are measured; fairness is measured in the first.
    values
        The site's scores by name.
    interval
        Wilson's 95 % interval of the site's accuracy, in percent; None if accuracy is not measured.
    run
        The run folder.
    model
        Which model of the run: "last" or "best".
    clients
        By score, the numbers of the run's clients under the final model, by their names; empty
        if the folder does not have them.
    only_class
        The class of all of the site's test examples; "" if they have several, or none.
    """

    site: str
    train_examples: int
    test_examples: int
    scores: tuple[Score, ...]
    values: Mapping[str, float]
    interval: tuple[float, float] | None
    run: Path
    model: str
    clients: Mapping[str, Mapping[str, float]]
    only_class: str = ""

    def range_of(self, score: Score) -> tuple[float, float] | None:
        """Return the worst and the best score of the run's clients, None if the folder has none."""
        values = sorted(
            self.clients.get(score.name, {}).values(), reverse=not score.higher_is_better
        )
        return (values[0], values[-1]) if values else None

    def written(self, score: Score) -> str:
        """Return the site's score as text, with the interval of an accuracy."""
        if score.name not in self.values:
            return "–"
        value = score.written(self.values[score.name])
        if score != ACCURACY or self.interval is None:
            return value
        low, high = self.interval
        return f"{value} ({low:.0f} to {high:.0f} %)"

    def sentences(self) -> Iterator[str]:
        """Yield the meaning of the numbers in sentences."""
        score = self.scores[0]
        spread = self.range_of(score)
        own = (
            f"{self.site} has {score.words} {self.written(score)} by {self.test_examples} test"
            " examples"
        )
        if score.name not in self.values:
            yield f"The {score.words} has no meaning on the test examples of {self.site}."
        elif spread is None:
            yield (
                f"{own}. This folder does not have exact scores of the run's clients: only a run"
                " folder with test examples, and without privacy accounts, does."
            )
        else:
            worst, best = map(score.written, spread)
            yield (
                f"{own}; the run's {len(self.clients[score.name])} clients have {worst} to {best}."
            )
        if self.only_class and BALANCED in self.values:
            yield (
                f"All test examples of {self.site} are of the class {self.only_class}: the balanced"
                " accuracy is the recall of that class."
            )
        if self.test_examples < FEWEST_EXAMPLES:
            yield (
                "So few test examples mean little: take more rows, or a larger test-share in the"
                " next run."
            )
        elif self.interval is not None:
            yield (
                "In parentheses is the 95 % interval of the accuracy: smaller differences may be"
                " chance."
            )
        if self.model == "best":
            yield "The run's clients have the final model, and the site has the best one."

    @property
    def as_json(self) -> dict[str, Any]:
        """The evaluation in plain values."""
        return {
            "run": str(self.run),
            "site": self.site,
            "model": self.model,
            "train_examples": self.train_examples,
            "test_examples": self.test_examples,
            "score": self.scores[0].name,
            "values": dict(self.values),
            "interval": self.interval,
            "clients": {name: dict(values) for name, values in self.clients.items()},
        }

"""What the fairness of a run is measured in: one number of each client."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A number that says how well a model serves a client.

    Attributes
    ----------
    name
        What replies call it on the wire: lower-case words with hyphens, such as `accuracy` or `r2`.
    higher_is_better
        Whether a higher number is better.
    percent
        Whether it is a share in [0, 1], which tables show in percent.
    """

    name: str
    higher_is_better: bool = True
    percent: bool = False

    @property
    def words(self) -> str:
        """Its ordinary name: "balanced accuracy", or "AUC"."""
        return {"auc": "AUC", "mae": "mean absolute error", "r2": "R²"}.get(
            self.name, self.name.replace("-", " ")
        )

    @property
    def title(self) -> str:
        """What tables and figures call it: "accuracy, %", or "loss, lower is better"."""
        unit = ", %" if self.percent else ""
        return (
            f"{self.words}{unit}"
            if self.higher_is_better
            else f"{self.words}{unit}, lower is better"
        )

    @property
    def unit(self) -> str:
        """What differences of it are in: points, or the score itself."""
        return "points" if self.percent else self.words

    def better(self, value: float, than: float) -> float:
        """Return by how much a number is better than another; negative where it is worse."""
        return value - than if self.higher_is_better else than - value

    def written(self, value: float) -> str:
        """Return a number of tables in words: "84.3 %", or "0.512"."""
        return f"{value:.1f} %" if self.percent else f"{value:.3g}"

    def has(self, value: float) -> bool:
        """Return whether it can have a value: a share lies in [0, 1]."""
        return not self.percent or 0.0 <= value <= 1.0

    def shown(self, value: float) -> float:
        """Return a number as tables have it."""
        return 100.0 * value if self.percent else value

    def cells(self, values: Iterable[float | None]) -> list[float | None]:
        """Return numbers of clients as tables have them, None where a client has none, or one that it cannot be."""
        return [
            None if value is None or not self.has(value) else self.shown(value) for value in values
        ]

    def column(self, model: str = "global", split: str = "test") -> str:
        """Return the column of tables that holds it.

        `model` is global or personal, `split` is test or validation.
        """
        return f"{split}_{self.name.replace('-', '_')}_of_{model}_model"


ACCURACY = Score("accuracy", percent=True)
"""The share of examples with the right answer."""

LOSS_SCORE = Score("loss", higher_is_better=False)
"""The mean of the task's loss, which every client reports."""


COUNT = "count"
"""What counts the examples of a group."""


F1 = Score("f1")
"""2 TP / (2 TP + FP + FN): the harmonic mean of precision and sensitivity."""

SENSITIVITY = Score("sensitivity", percent=True)
"""The share of the positive examples that are taken for positive."""

SPECIFICITY = Score("specificity", percent=True)
"""The share of the other examples that are not taken for positive."""

CALIBRATION_ERROR = Score("calibration-error", higher_is_better=False)
"""The mean distance of confidence and accuracy over ten equal bins of confidence, weighted by
examples."""

BRIER = Score("brier", higher_is_better=False)
"""The mean squared distance of probabilities and outcomes: of the positive class of two, summed
over all of more."""

FURTHER: Mapping[str, Score] = {
    score.name: score for score in (F1, SENSITIVITY, SPECIFICITY, CALIBRATION_ERROR, BRIER)
}
"""The scores that a run may ask for in addition to those of its task, by name."""


WHY_UNDEFINED: Mapping[str, str] = {
    "auc": "one class in its test examples",
    "sensitivity": "no positive test example",
    "specificity": "positive test examples alone",
    "f1": "no test example is positive or predicted to be",
    "r2": "all its test targets are the same",
}
"""Why a client may have no value of a score, which is then left out, by the names of scores."""


@dataclass(frozen=True)
class GroupScore(Score):
    """A score that clients measure in each group of their examples: the mean of a number that each example has.

    Attributes
    ----------
    over
        What counts the examples that it is the mean over: `count` for all of a group, or a word of
        its own where some do not count, as `positives` for a true positive rate.
    """

    over: str = COUNT

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of tables that hold it: the count where that is one of its own, and the score."""
        name = self.name.replace("-", "_")
        return (name,) if self.over == COUNT else (self.over.replace("-", "_"), name)


def put_first(scores: Iterable[Score], first: Score) -> tuple[Score, ...]:
    """Return scores with the one that fairness goes by before all others."""
    return (first, *(score for score in scores if score != first))


def accuracy_first(scores: Iterable[Score]) -> list[Score]:
    """Return scores in the order in which tables of clients have them, whichever fairness goes by."""
    return sorted(scores, key=lambda score: score != ACCURACY)


def name_in_group(name: str, grouping: str, group: str) -> str:
    """Return what replies call a score, or a count, of one group: "accuracy[sex:female]"."""
    return f"{name}[{grouping}:{group}]"

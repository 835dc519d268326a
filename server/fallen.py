"""Whether a finished run's model is far below the best one that the run has had."""

from collections.abc import Sequence
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import AGREED as AGREEMENT
from fairbloom.protocol.scores import Score
from fairbloom.tasks import load_task

from .run_folder.files import AGREED, BEST, ROUNDS, SCORES
from .settings import Settings

SHARE, LEAST_POINTS = 0.5, 10.0
"""A model has fallen if its mean score above chance is less than this share of the best so far, and the best was
at least this many points above chance."""


class FallenModelError(FairbloomError):
    """A finished run whose last model is far below its best; the message names both, and what to do."""


def check_not_fallen(folder: Path, settings: Settings) -> None:
    """Raise FallenModelError where the model of a finished run has fallen; scores that are no shares are not judged."""
    score = SCORES.read(folder)[0]
    if score.percent and score.higher_is_better:
        serves = settings.strategy().serves
        classes = load_task({**settings.run_config(), AGREEMENT: AGREED.read(folder)}).classes or 0
        if words := describe_fall(ROUNDS.read(folder), score, serves, chance_of(score, classes)):
            raise FallenModelError(words)


def chance_of(score: Score, classes: int) -> float:
    """Return the score of a guess, as tables have it: 50 % of AUC, 1/C of accuracies with C classes, else 0."""
    if score.name == "auc":
        return 50.0
    return 100.0 / classes if classes and score.name.endswith("accuracy") else 0.0


def describe_fall(rows: Sequence[dict[str, str]], score: Score, serves: str, chance: float) -> str:
    """Return in words how far the model has fallen by the rows of rounds.csv, "" where it has not.

    `serves` is the model that is judged, global or personal; `chance` is the score of a guess, in percent.
    """
    column = f"{score.column(serves)}_mean"
    means = {int(row["round"]): float(row[column]) for row in rows if row.get(column)}
    if not means:
        return ""
    best, last = max(means, key=lambda number: means[number]), max(means)
    gained = means[best] - chance
    if gained < LEAST_POINTS or means[last] - chance >= SHARE * gained:
        return ""
    return (
        f"the model has fallen: its mean test {score.name} is {score.written(means[last])} at the end, and was "
        f"{score.written(means[best])} after round {best}. {BEST.name} holds the best model; "
        "where a client has broken it, begin a new run of the other clients, by training-clients"
    )

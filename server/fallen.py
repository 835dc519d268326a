"""Whether a finished run's score is far below its best, or no better than at first."""

from collections.abc import Sequence
from pathlib import Path

from fairbloom.logs import log
from fairbloom.protocol.scores import Score

from .run_folder.files import BEST, ROUNDS

SHARE, LEAST = 0.5, 0.1
"""A model has fallen if its mean score above chance is less than this share of the best one, where the best is at least
this far above chance, of 1; and if it is no better than at first, where the best is at least this much better."""

LEAST_ROUNDS = 3
"""A model that never was better than a guess is named after this many evaluated rounds."""


def warn_of_fall(folder: Path, score: Score, serves: str, *, chance: float = 0.0, rate: str = "") -> None:
    """Log once that a finished run has ended far below its best; arguments are those of `describe_fall`."""
    if words := describe_fall(ROUNDS.read(folder), score, serves, chance=chance, rate=rate):
        log.warning("%s", words)


def chance_of(score: Score, classes: int) -> float:
    """Return the score of a guess, as tables have it: half of AUC, 1/C of accuracies with C classes, else 0."""
    share = 0.5 if score.name == "auc" else 1.0 / classes if classes and score.name.endswith("accuracy") else 0.0
    return _scale(score) * share


def describe_fall(
    rows: Sequence[dict[str, str]], score: Score, serves: str, *, chance: float = 0.0, rate: str = ""
) -> str:
    """Return in words how far the score has fallen by the rows of rounds.csv, "" where it has not.

    `serves` is the model that is judged, global or personal; `chance` is the score of a guess, 0 where it is not known;
    `rate` says where the learning rate is set.
    """
    column = f"{score.column(serves)}_mean"
    means = {int(row["round"]): float(row[column]) for row in rows if row.get(column)}
    if not means:
        return ""
    first, last = min(means), max(means)
    best = max(means, key=lambda number: score.better(means[number], 0.0))
    to_first = score.better(means[last], means[first]) <= 0.0 and _ends_at_first(means, score, chance)
    if not to_first and not _is_far_below(means[best], means[last], score, chance):
        return ""
    at_first = f", {score.written(means[first])} after round {first}" if to_first and first != best else ""
    return (
        f"the model has fallen: its mean test {score.name} is {score.written(means[last])} at the end, and was "
        f"{score.written(means[best])} after round {best}{at_first}. Look at the learning rate first"
        f"{f' ({rate})' if rate else ''}: steps that are too long undo what was learned. {BEST.name} holds the best "
        "model"
    )


def _scale(score: Score) -> float:
    return 100.0 if score.percent else 1.0


def _is_far_below(best: float, last: float, score: Score, chance: float) -> bool:
    """Return whether a score has lost most of what its best was above a guess; errors have no such bound."""
    gained = best - chance
    return score.higher_is_better and gained >= LEAST * _scale(score) and last - chance < SHARE * gained


def _ends_at_first(means: dict[int, float], score: Score, chance: float) -> bool:
    """Return whether scores that end no better than at first were better in between, or never better than a guess."""
    first, values = means[min(means)], list(means.values())
    gained = max(score.better(value, first) for value in values)
    if gained >= LEAST * (_scale(score) if score.higher_is_better else abs(first)) and gained > 0.0:
        return True
    guessed = chance > 0.0 and max(values) - chance < LEAST * _scale(score)
    return guessed and score.higher_is_better and len(values) >= LEAST_ROUNDS

"""Whether a finished run's score is far below its best."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairbloom.logs import log
from fairbloom.protocol.scores import Score

from .run_folder.files import BEST, ROUNDS

SHARE, LEAST = 0.75, 0.1
"""A model has fallen if it has lost this share of what lies between its best and its worst mean score, where that loss
is at least this much of the scale; of errors, which have none, at least half of the best."""


def warn_of_fall(folder: Path, score: Score, serves: str, rate: str) -> None:
    """Log once that a finished run has ended far below its best; arguments are those of `describe_fall`."""
    if words := describe_fall(ROUNDS.read(folder), score, serves, rate):
        log.warning("%s", words)


def describe_fall(rows: Sequence[Mapping[str, str]], score: Score, serves: str, rate: str) -> str:
    """Return in words how far the score has fallen by the rows of rounds.csv, "" where it has not.

    `serves` is the model that is judged, global or personal; `rate` says where the learning rate is set.
    """
    column = f"{score.column(serves)}_mean"
    means = {int(row["round"]): float(row[column]) for row in rows if row.get(column)}
    if not means:
        return ""
    last, best = max(means), max(means, key=lambda number: score.better(means[number], 0.0))
    lost = score.better(means[best], means[last])
    spread = max(means.values()) - min(means.values())
    least = LEAST * (100.0 if score.percent else 1.0) if score.higher_is_better else abs(means[best]) / 2.0
    if lost < least or lost <= SHARE * spread:
        return ""
    return (
        f"the model has fallen: its mean test {score.name} is {score.written(means[last])} at the end, and was "
        f"{score.written(means[best])} after round {best}. Look at the learning rate first ({rate}): steps that are "
        f"too long undo what was learned. {BEST.name} holds the best model"
    )

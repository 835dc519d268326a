"""Where a client gains by the score that fairness goes by, while AUC or balanced accuracy falls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairbloom.protocol.scores import Score

from .differences import FEWEST_SEEDS

if TYPE_CHECKING:
    import pandas

AGAINST = ("auc", "balanced-accuracy")
"""The scores that may say the opposite: neither rises where a model takes more examples for the larger class."""


def find_contradictions(
    finals: "pandas.DataFrame", baseline: str, scores: Sequence[Score], clients: Sequence[str]
) -> list[str]:
    """Return in sentences which clients gain by the first score while others fall, those that gain most first.

    Each score needs three seeds in which the client has it under both methods, and moves so in most of these.
    """
    found: list[tuple[float, str]] = []
    compared = [score for score in scores if score is scores[0] or score.name in AGAINST]
    for method in finals["method"].unique():
        gains = [_gains(finals[finals["score"] == score.name], method, baseline, score) for score in compared]
        for client in clients if method != baseline else ():
            gain, *others = (each.get(client, 0.0) for each in gains)
            lost = [_size(each, score) for each, score in zip(others, compared[1:], strict=True) if each < 0.0]
            if gain > 0.0 and lost:
                said = f"{client} gains {_size(gain, scores[0])} under {method}, but loses {' and '.join(lost)}."
                found.append((gain, said))
    return [said for _, said in sorted(found, key=lambda each: -each[0])]


def _gains(finals: "pandas.DataFrame", method: str, baseline: str, score: Score) -> "pandas.Series[float]":
    """Return the mean gain of clients by a score; 0 with too few seeds, or where most of them do not go that way."""
    values = finals.set_index(["seed", "client"])["value"]
    mine, base = (values[(finals["method"] == each).to_numpy()] for each in (method, baseline))
    by_client = (score.better(1.0, 0.0) * (mine - base)).dropna().groupby("client")
    mean = by_client.mean()
    agree = by_client.agg(lambda gains: (gains * gains.mean() > 0.0).mean())
    return mean.where((by_client.size() >= FEWEST_SEEDS) & (agree > 0.5), 0.0)


def _size(gain: float, score: Score) -> str:
    """Return a gain without its sign, in words: "10.1 points of balanced accuracy"."""
    return f"{f'{abs(gain):.1f} points' if score.percent else f'{abs(gain):.3g}'} of {score.words}"

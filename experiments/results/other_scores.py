"""Where a client gains by the score that fairness goes by, while AUC or balanced accuracy falls."""

import statistics
from collections.abc import Mapping, Sequence

from fairbloom.protocol.scores import Score

from .differences import FEWEST_SEEDS

Finals = Sequence[Mapping[str, Mapping[str, float]]]
"""Of a method, one entry a seed: each score's name, and by it the score of each client."""

AGAINST = ("auc", "balanced-accuracy")
"""The scores that may say the opposite: neither rises where a model takes more examples for the larger class."""


def find_contradictions(
    finals: Mapping[str, Finals], baseline: str, scores: Sequence[Score], clients: Sequence[str]
) -> list[str]:
    """Return in sentences which clients gain by the first score while others fall, those that gain most first.

    Each score needs three seeds in which the client has it under both methods, and moves so in most of these.
    """
    found: list[tuple[float, str]] = []
    against = [score for score in scores[1:] if score.name in AGAINST]
    for method in finals:
        for client in clients if method != baseline else ():
            gain, *others = (
                _gain_of(finals[method], finals[baseline], client, score) for score in (scores[0], *against)
            )
            lost = [_size(each, score) for each, score in zip(others, against, strict=True) if each < 0.0]
            if gain > 0.0 and lost:
                said = f"{client} gains {_size(gain, scores[0])} under {method}, but loses {' and '.join(lost)}."
                found.append((gain, said))
    return [said for _, said in sorted(found, key=lambda each: -each[0])]


def _gain_of(after: Finals, before: Finals, client: str, score: Score) -> float:
    """Return the mean gain of a client by a score; 0 with too few seeds, or where most of them do not go that way."""
    pairs = [(mine[score.name], base[score.name]) for mine, base in zip(after, before, strict=True)]
    gains = [score.better(mine[client], base[client]) for mine, base in pairs if client in mine and client in base]
    mean = statistics.fmean(gains) if len(gains) >= FEWEST_SEEDS else 0.0
    return mean if 2 * sum(mean * each > 0.0 for each in gains) > len(gains) else 0.0


def _size(gain: float, score: Score) -> str:
    """Return a gain without its sign, in words: "10.1 points of balanced accuracy"."""
    return f"{f'{abs(gain):.1f} points' if score.percent else f'{abs(gain):.3g}'} of {score.words}"

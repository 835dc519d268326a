"""Where a client gains by the score that fairness goes by, while AUC or balanced accuracy falls."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbloom.protocol.scores import Score

from .differences import FEWEST_SEEDS

Finals = Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]
"""By method, one entry a seed: each score's name, and by it the score of each client."""

AGAINST = ("auc", "balanced-accuracy")
"""The scores that may say the opposite: neither rises where a model takes more examples for the larger class."""


@dataclass(frozen=True)
class Move:
    """By how much a score of a client is better than under the baseline, with each seed that has both."""

    score: Score
    gains: tuple[float, ...]

    @property
    def gain(self) -> float:
        """The mean gain."""
        return statistics.fmean(self.gains)

    @property
    def size(self) -> str:
        """The mean gain without its sign, in words: "10.1 points of balanced accuracy"."""
        size = f"{abs(self.gain):.1f} points" if self.score.percent else f"{abs(self.gain):.3g}"
        return f"{size} of {self.score.words}"

    def is_in_most(self, sign: float) -> bool:
        """Return whether the mean gain has a sign, and so have the gains of most seeds."""
        return sign * self.gain > 0.0 and 2 * sum(sign * each > 0.0 for each in self.gains) > len(self.gains)


@dataclass(frozen=True)
class Contradiction:
    """A client that gains under a method by the score that fairness goes by, and loses by others."""

    method: str
    client: str
    main: Move
    others: tuple[Move, ...]

    @property
    def sentence(self) -> str:
        """What is to be known, with client, scores and sizes."""
        lost = " and ".join(each.size for each in self.others)
        return f"{self.client} gains {self.main.size} under {self.method}, but loses {lost}."


def find_contradictions(
    finals: Finals, baseline: str, scores: Sequence[Score], clients: Sequence[str]
) -> list[Contradiction]:
    """Return the clients that gain by the first score while others fall, those that gain most first.

    Each score needs three seeds in which the client has it under both methods, and moves so in most of these.
    """
    found = []
    against = [score for score in scores[1:] if score.name in AGAINST]
    for method in finals:
        for client in clients if method != baseline else ():
            main = _find_move(finals[method], finals[baseline], client, scores[0])
            if main and main.is_in_most(1.0):
                others = (_find_move(finals[method], finals[baseline], client, score) for score in against)
                if lost := tuple(each for each in others if each and each.is_in_most(-1.0)):
                    found.append(Contradiction(method, client, main, lost))
    return sorted(found, key=lambda each: -each.main.gain)


def _find_move(
    after: Sequence[Mapping[str, Mapping[str, float]]],
    before: Sequence[Mapping[str, Mapping[str, float]]],
    client: str,
    score: Score,
) -> Move | None:
    """Return how a score of a client moves; None with too few seeds."""
    pairs = [(mine[score.name], base[score.name]) for mine, base in zip(after, before, strict=True)]
    gains = [score.better(mine[client], base[client]) for mine, base in pairs if client in mine and client in base]
    return Move(score, tuple(gains)) if len(gains) >= FEWEST_SEEDS else None

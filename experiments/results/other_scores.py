"""Where another score of a client says the opposite of the one that fairness goes by."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbloom.protocol.scores import Score

from .differences import FEWEST_SEEDS

Finals = Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]
"""By method, one entry a seed: each score's name, and by it the score of each client."""


@dataclass(frozen=True)
class Move:
    """The difference of a client's score to that under the baseline, over the seeds that have both."""

    score: Score
    gains: tuple[float, ...]  # by seed; positive is better
    before: float  # mean over the seeds under the baseline
    after: float

    @property
    def gain(self) -> float:
        """The mean gain."""
        return statistics.fmean(self.gains)

    @property
    def size(self) -> str:
        """The mean gain without its sign, in words: "10.1 points of balanced-accuracy"."""
        size = f"{abs(self.gain):.1f} points" if self.score.percent else f"{abs(self.gain):.3g}"
        return f"{size} of {self.score.name}"

    @property
    def same_sign(self) -> int:
        """With how many seeds it has the sign of the mean."""
        return sum(each * self.gain > 0.0 for each in self.gains)

    @property
    def in_most(self) -> bool:
        """Whether it has that sign with most seeds."""
        return 2 * self.same_sign > len(self.gains)

    @property
    def seeds(self) -> str:
        """With how many seeds it has the sign of the mean, in words: "10 of 10 seeds"."""
        return f"{self.same_sign} of {len(self.gains)} seeds"


@dataclass(frozen=True)
class Contradiction:
    """A client that a method serves better by one score and worse by others."""

    method: str
    client: str
    main: Move  # by the score that fairness goes by
    others: tuple[Move, ...]  # the other way in most seeds

    @property
    def share(self) -> float:
        """The share of seeds in which the scores move apart, of the one that does so most."""
        return max(
            min(each.same_sign / len(each.gains), self.main.same_sign / len(self.main.gains)) for each in self.others
        )

    @property
    def sentence(self) -> str:
        """What is to be known, with client, scores and numbers."""
        one, other = ("better", "worse") if self.main.gain > 0.0 else ("worse", "better")
        moves = [
            f"by {each.size} ({each.score.written(each.before)} to {each.score.written(each.after)}, {each.seeds})"
            for each in self.others
        ]
        return (
            f"For {self.client} {self.method} is {one} by {self.main.size} ({self.main.seeds}), but {other} "
            f"{' and '.join(moves)}."
        )


def find_contradictions(
    finals: Finals, baseline: str, scores: Sequence[Score], clients: Sequence[str]
) -> list[Contradiction]:
    """Return the clients of which another score moves the other way in most seeds, those of the most seeds first.

    Each score needs three seeds in which the client has it under both methods; fairness goes by the first of `scores`.
    """
    found = []
    for method in finals:
        for client in clients if method != baseline else ():
            moves = [_find_move(finals[method], finals[baseline], client, score) for score in scores]
            main, others = moves[0], [each for each in moves[1:] if each and each.in_most]
            if main and main.in_most and (against := [each for each in others if each.gain * main.gain < 0.0]):
                found.append(Contradiction(method, client, main, tuple(against)))
    return sorted(found, key=lambda each: -each.share)


def _find_move(
    after: Sequence[Mapping[str, Mapping[str, float]]],
    before: Sequence[Mapping[str, Mapping[str, float]]],
    client: str,
    score: Score,
) -> Move | None:
    """Return how a score of a client moves; None with too few seeds."""
    pairs = [(mine[score.name], base[score.name]) for mine, base in zip(after, before, strict=True)]
    both = [(mine[client], base[client]) for mine, base in pairs if client in mine and client in base]
    if len(both) < FEWEST_SEEDS:
        return None
    gains = tuple(score.better(mine, base) for mine, base in both)
    return Move(score, gains, statistics.fmean(base for _, base in both), statistics.fmean(mine for mine, _ in both))


def sentences_on(found: Sequence[Contradiction]) -> list[str]:
    """Return a sentence on each contradiction; of many, on the first, and how many more there are."""
    shown = [each.sentence for each in found[:3]]
    if rest := len(found) - len(shown):
        cases = "cases" if rest > 1 else "case"
        shown.append(f"{rest} more {cases} of a client better by one score and worse by another.")
    return shown

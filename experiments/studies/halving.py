"""Successive halving: many candidates with few rounds and one seed, the best of them with more."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

SHARE = 3
"""A rung keeps one in so many candidates, and each has so many times the rounds, as far as the run has so many."""

FEWEST_ROUNDS = 5
"""No candidate is judged after fewer rounds, unless the whole run has fewer: the first rounds mislead."""

SEEDS = (1, 2, 4)
"""With how many seeds each rung judges, at least."""


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder: after how many rounds candidates are judged there, and with how many seeds."""

    rounds: int
    seeds: int


def rungs_of(rounds: int) -> tuple[Rung, ...]:
    """Return the ladder of runs with so many rounds; the last rung has all of them."""
    fewest = min(rounds, FEWEST_ROUNDS)
    lengths = [max(fewest, math.ceil(rounds / SHARE**left)) for left in reversed(range(len(SEEDS)))]
    return tuple(Rung(length, seeds) for length, seeds in zip(lengths, SEEDS, strict=True))


@dataclass(frozen=True)
class Standing:
    """What validation examples say of a candidate on a rung.

    Attributes
    ----------
    values
        The measure of the wish with each seed, in the unit of the score.
    excesses
        By how much more than it may cost the candidate costs of each constraint's measure, in the mean over the seeds;
        0 or less where the constraint is kept.
    high
        Whether a higher number of the measure is better.
    """

    values: Sequence[float]
    excesses: Sequence[float] = ()
    high: bool = True

    @property
    def mean(self) -> float:
        """The mean of the measure over the seeds."""
        return statistics.fmean(self.values)

    @property
    def violation(self) -> float:
        """By how much constraints are missed, all together."""
        return sum(max(0.0, excess) for excess in self.excesses)

    @property
    def merit(self) -> float:
        """What candidates are ordered by: a point by which a constraint is missed counts like one of the measure."""
        return (self.mean if self.high else -self.mean) - self.violation


def survivors(standings: Mapping[str, Standing], always: Collection[str]) -> list[str]:
    """Return who goes on to the next rung, the best first: one in SHARE, and at least one, beside those `always` in."""
    others = sorted((name for name in standings if name not in always), key=lambda name: -standings[name].merit)
    best = others[: max(1, math.ceil(len(others) / SHARE))]
    return [name for name in best_first(standings) if name in best or name in always]


def choose(standings: Mapping[str, Standing]) -> str | None:
    """Return the best of those that keep all constraints; None where nobody does. Of equals, the first is taken."""
    keeping = {name: each for name, each in standings.items() if each.violation == 0.0}
    return next(iter(best_first(keeping)), None)


def best_first(standings: Mapping[str, Standing]) -> list[str]:
    """Return the candidates in the order of their merit."""
    return sorted(standings, key=lambda name: -standings[name].merit)

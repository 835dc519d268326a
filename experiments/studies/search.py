"""The search among candidates: successive halving. Many run few rounds, and the best third of them runs more.

A recommendation searches within a time. Who goes on depends on seeds and scores alone, so an interrupted search goes on
where it was.
"""

import contextlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairbloom.server.settings import Settings

from ..results.recommendation import Attempt
from .objective import Rating, best_first

SHARE = 3
"""A rung keeps one in so many candidates, and each has so many times the rounds."""


@dataclass(frozen=True)
class Rung:
    """After how many rounds candidates are judged, and with how many seeds."""

    rounds: int
    seeds: int  # at least
    most: int  # where there is time


def rungs_of(settings: Settings, seeds: Sequence[tuple[int, int]]) -> list[Rung]:
    """Return the ladder of runs with these settings; each rung has as many seeds as `seeds` says, at least and at most.

    The last rung has all rounds, and none has fewer than five, since the first rounds mislead. Where steps decay over
    all rounds, no run can be judged before its last.
    """
    rounds = settings.num_rounds
    fewest = rounds if settings.paced or settings.strategy().paced else min(rounds, 5)
    lengths = [max(fewest, math.ceil(rounds / SHARE**left)) for left in reversed(range(len(seeds)))]
    return list(dict.fromkeys(Rung(length, *counts) for length, counts in zip(lengths, seeds, strict=True)))


class Judged(Protocol):
    """Candidates that can be run and judged: the runs of a study, or numbers in their place."""

    @property
    def always(self) -> Collection[str]:
        """The labels of those whom every rung judges."""

    @property
    def failed(self) -> Mapping[str, str]:
        """Why candidates could not be run or judged, by their labels."""

    def search(self, labels: Sequence[str], seeds: Sequence[int], rounds: int, until: float) -> float:
        """Run candidates, and return the seconds; raise TimeoutError when the time is over."""

    def rate(self, labels: Sequence[str], seeds: Sequence[int], rounds: int) -> Mapping[str, Rating]:
        """Return what is known of those candidates that have come so far with all these seeds."""


class Search:
    """Successive halving of candidates, which are tried in the order of `labels`.

    The rungs share what is left of the time equally. On the first, candidates are tried one group after the
    other until its time is over; on the others as many go on as the time should be enough for. `ratings` are those of
    the last rung that was judged, and `tried` says how far each candidate came, the furthest and best first.
    """

    def __init__(
        self, trials: Judged, labels: Sequence[str], rungs: Sequence[Rung], seeds: Sequence[int], at_a_time: int
    ) -> None:
        self._trials, self._labels, self._rungs, self._seeds = trials, labels, rungs, seeds
        self._at_a_time = at_a_time
        self._pace = 0.0  # seconds of the wall clock for a round of one run
        self.ratings: Mapping[str, Rating] = {}
        self.tried: tuple[Attempt, ...] = ()
        self.rung: Rung | None = None

    def run(self, until: float) -> None:
        """Climb as far as the time allows; no run goes on when it is over."""
        alive = self._labels
        with contextlib.suppress(TimeoutError):
            for place, rung in enumerate(self._rungs):
                left = len(self._rungs) - place
                end = _share(until, left)
                alive = self._affordable(alive, rung, end) if place else alive
                try:
                    if place:
                        self._run_seeds(alive, rung, end, until)
                    else:
                        self._run_groups(rung, left, until)
                finally:
                    self._judge(alive, rung)
                if not self.ratings:
                    return
                alive = survivors(self.ratings, self._trials.always)

    @property
    def untried(self) -> tuple[str, ...]:
        """The candidates that there was no time for."""
        known = {*self._trials.failed, *(each.method for each in self.tried)}
        return tuple(label for label in self._labels if label not in known)

    def _run_groups(self, rung: Rung, left: int, until: float) -> None:
        """Run all candidates with the first seed, group by group, while the rung has time; `left` rungs share it.

        Its time begins when the first group is over, since processes have to start before. Those that are always judged
        are in that group, and others beside them while processes are free.
        """
        always = [label for label in self._labels if label in self._trials.always]
        others = [label for label in self._labels if label not in always]
        beside = -len(always) % self._at_a_time or self._at_a_time
        self._search([*always, *others[:beside]], self._seeds[:1], rung.rounds, until)
        end, took = _share(until, left), 0.0
        for start in range(beside, len(others), self._at_a_time):
            if time.monotonic() + took > end:
                return
            took = self._search(others[start : start + self._at_a_time], self._seeds[:1], rung.rounds, until)

    def _run_seeds(self, alive: Sequence[str], rung: Rung, end: float, until: float) -> None:
        """Run candidates seed by seed, while the rung has time for more seeds than it needs."""
        took = 0.0
        for count, seed in enumerate(self._seeds[: rung.most]):
            if count and time.monotonic() + took > (until if count < rung.seeds else end):
                return
            took = self._search(alive, [seed], rung.rounds, until)

    def _search(self, labels: Sequence[str], seeds: Sequence[int], rounds: int, until: float) -> float:
        took = self._trials.search(labels, seeds, rounds, until)
        if took:
            self._pace = took / (len(labels) * rounds)
        return took

    def _affordable(self, alive: Sequence[str], rung: Rung, end: float) -> list[str]:
        """Return those who should get through a rung in time: the best, and those that are always there."""
        whole = self._pace * rung.rounds * rung.seeds
        count = min(len(alive), (end - time.monotonic()) / whole) if whole > 0.0 else len(alive)
        others = [label for label in alive if label not in self._trials.always]
        best = others[: max(1, int(count) - len(self._trials.always))]
        return [label for label in alive if label in best or label in self._trials.always]

    def _judge(self, alive: Sequence[str], rung: Rung) -> None:
        """Take in what a rung says: with as many seeds as all of its candidates have, else as some candidate has."""
        counts = range(rung.most, 0, -1)
        found = {count: self._trials.rate(alive, self._seeds[:count], rung.rounds) for count in counts}
        expected = {label for label in alive if label not in self._trials.failed}
        whole = [count for count in counts if {*found[count]} >= expected]
        some = [count for count in counts if not {*found[count]} <= {*self._trials.always}]
        first = [count for count in counts if found[count] and not self.ratings]
        if not (usable := [*whole, *some, *first]):
            return
        count = usable[0]
        self.ratings, self.rung = found[count], Rung(rung.rounds, count, count)
        here = [
            Attempt(label, rung.rounds, count, self.ratings[label].mean, self.ratings[label].violation)
            for label in best_first(self.ratings)
        ]
        self.tried = (*here, *(each for each in self.tried if each.method not in self.ratings))


def survivors(ratings: Mapping[str, Rating], always: Collection[str] = ()) -> list[str]:
    """Return who goes on to the next rung, the best first: one in SHARE, and at least one, beside those `always` in."""
    others = sorted((name for name in ratings if name not in always), key=lambda name: -ratings[name].merit)
    best = others[: max(1, math.ceil(len(others) / SHARE))]
    return [name for name in best_first(ratings) if name in best or name in always]


def _share(until: float, left: int) -> float:
    """Return when the next of so many rungs ends that share the time until then."""
    now = time.monotonic()
    return now + (until - now) / left

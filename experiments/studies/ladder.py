"""The search of a recommendation: candidates climb a ladder of rounds and seeds while there is time."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ..results.recommendation import Tried
from .halving import Rung, Standing, best_first, rungs_of, survivors

MOST_SEEDS = 8
"""The most seeds with which the last rung judges."""


class Judged(Protocol):
    """Candidates that can be run and judged: the runs of a recommendation, or numbers in their place."""

    @property
    def always(self) -> Sequence[str]:
        """The labels of those whom every rung judges."""

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""

    @property
    def failed(self) -> Mapping[str, str]:
        """Why candidates could not be run or judged, by their labels."""

    def search(self, labels: Iterable[str], seed: int, rounds: int, until: float) -> float:
        """Run candidates, and return the seconds; raise TimeoutError when the time is over."""

    def standings(self, labels: Iterable[str], seeds: Sequence[int], rounds: int) -> Mapping[str, Standing]:
        """Return what is known of those candidates that have come so far with all these seeds."""


class Search:
    """Successive halving of candidates within a time.

    The rungs have a third of the time each. On the first, candidates are tried one group after the other, in their
    order, until its time is over; on the others as many go on as the time should be enough for.

    Parameters
    ----------
    trials
        What runs and judges candidates.
    labels
        The candidates, in the order in which they are tried.
    seed
        The first seed.
    at_a_time
        How many runs go on at a time.

    Attributes
    ----------
    standings
        Those of the last rung that was judged.
    tried
        How far each candidate came, the furthest and best first.
    rung
        That rung, with as many seeds as it had; None where nothing could be judged.
    """

    def __init__(self, trials: Judged, labels: Sequence[str], seed: int, at_a_time: int) -> None:
        self._trials, self._labels, self._seed, self._at_a_time = trials, labels, seed, at_a_time
        self._pace = 0.0  # seconds of the wall clock for a round of one run
        self.standings: Mapping[str, Standing] = {}
        self.tried: tuple[Tried, ...] = ()
        self.rung: Rung | None = None

    def run(self, until: float) -> None:
        """Climb as far as the time allows; no run goes on when it is over."""
        with contextlib.suppress(TimeoutError):
            self._climb(until)

    def _climb(self, until: float) -> None:
        first, *others = rungs_of(self._trials.rounds)
        try:
            self._try_all(first, len(others) + 1, until)
        finally:
            self._judge(self._labels, first, [self._seed])
        for left, rung in zip(range(len(others), 0, -1), others, strict=True):
            if not self.standings:
                return
            end = _share(until, left)
            alive = self._affordable(survivors(self.standings, self._trials.always), rung, end)
            seeds = range(self._seed, self._seed + (MOST_SEEDS if left == 1 else rung.seeds))
            try:
                self._run_seeds(alive, rung, seeds, end, until)
            finally:
                self._judge(alive, rung, seeds)

    @property
    def untried(self) -> tuple[str, ...]:
        """The candidates that there was no time for."""
        known = {*self._trials.failed, *(each.method for each in self.tried)}
        return tuple(label for label in self._labels if label not in known)

    @property
    def _first(self) -> list[str]:
        """Who is run first: those that are always there, and others beside them while processes are free."""
        always = [label for label in self._labels if label in self._trials.always]
        others = [label for label in self._labels if label not in always]
        return [*always, *others[: -len(always) % self._at_a_time or self._at_a_time]]

    def _try_all(self, rung: Rung, left: int, until: float) -> None:
        """Run the candidates with the first seed, group by group, while the rung has time; `left` rungs share it.

        Its time begins when the first group is over, since processes have to start before.
        """
        self._search(self._first, self._seed, rung.rounds, until)
        end, took = _share(until, left), 0.0
        others = [label for label in self._labels if label not in self._first]
        for start in range(0, len(others), self._at_a_time):
            if time.monotonic() + took > end:
                return
            took = self._search(others[start : start + self._at_a_time], self._seed, rung.rounds, until)

    def _run_seeds(self, alive: Sequence[str], rung: Rung, seeds: Iterable[int], end: float, until: float) -> None:
        took = 0.0
        for count, seed in enumerate(seeds):
            if count and time.monotonic() + took > (until if count < rung.seeds else end):
                return
            took = self._search(alive, seed, rung.rounds, until)

    def _search(self, labels: Sequence[str], seed: int, rounds: int, until: float) -> float:
        took = self._trials.search(labels, seed, rounds, until)
        if took:
            self._pace = took / (len(labels) * rounds)
        return took

    def _affordable(self, alive: Sequence[str], rung: Rung, end: float) -> list[str]:
        """Return those who should get through a rung in time: the best, and those that are always there."""
        whole = self._pace * rung.rounds * rung.seeds
        count = int((end - time.monotonic()) / whole) if whole > 0.0 else len(alive)
        others = [label for label in alive if label not in self._trials.always]
        best = others[: max(1, count - len(self._trials.always))]
        return [label for label in alive if label in best or label in self._trials.always]

    def _judge(self, alive: Sequence[str], rung: Rung, seeds: Sequence[int]) -> None:
        """Take in what a rung says: with as many seeds as all of its candidates have, else as some candidate has."""
        counts = range(len(seeds), 0, -1)
        found = {count: self._trials.standings(alive, seeds[:count], rung.rounds) for count in counts}
        expected = {label for label in alive if label not in self._trials.failed}
        whole = [count for count in counts if {*found[count]} >= expected]
        some = [count for count in counts if not {*found[count]} <= {*self._trials.always}]
        first = [count for count in counts if found[count] and not self.standings]
        if not (usable := [*whole, *some, *first]):
            return
        count = usable[0]
        self.standings, self.rung = found[count], Rung(rung.rounds, count)
        here = [
            Tried(label, rung.rounds, count, self.standings[label].mean, self.standings[label].violation)
            for label in best_first(self.standings)
        ]
        self.tried = (*here, *(each for each in self.tried if each.method not in self.standings))


def _share(until: float, left: int) -> float:
    """Return when the next of so many rungs ends that share the time until then."""
    now = time.monotonic()
    return now + (until - now) / left

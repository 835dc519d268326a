"""Successive halving on numbers in place of runs: who goes on, with how many rounds and seeds, and when it ends."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.experiments.studies import search
from fairbloom.experiments.studies.objective import Rating, choose
from fairbloom.experiments.studies.recommend import SEEDS
from fairbloom.experiments.studies.search import Rung, Search, rungs_of, survivors
from fairbloom.server.settings import Settings

BASELINE, EQUAL = "baseline", "equal"


@dataclass
class Numbers:
    """Candidates whose measure is their quality, after few rounds less sure; a round of one takes a second."""

    qualities: Mapping[str, float]
    rounds: int = 45
    excesses: Mapping[str, float] = field(default_factory=dict)
    broken: Sequence[str] = ()
    now: float = 0.0
    done: dict[tuple[str, int], int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    always: Sequence[str] = (BASELINE, EQUAL)

    def search(self, labels: Sequence[str], seeds: Sequence[int], rounds: int, until: float) -> float:
        begun = self.now
        for seed, label in itertools.product(seeds, labels):
            if label in self.broken:
                self.failed[label] = "its runs fail"
                continue
            missing = max(0, rounds - self.done.get((label, seed), 0))
            if self.now + missing > until:
                self.now = max(self.now, until)
                raise TimeoutError
            self.asked += [(label, seed, rounds)] if missing else []
            self.now += missing
            self.done[label, seed] = max(rounds, self.done.get((label, seed), 0))
        return self.now - begun

    def rate(self, labels: Sequence[str], seeds: Sequence[int], rounds: int) -> Mapping[str, Rating]:
        there = [
            label
            for label in labels
            if label not in self.failed and all(self.done.get((label, seed), 0) >= rounds for seed in seeds)
        ]
        if BASELINE not in there:
            return {}
        wrong = {label: (-1.0) ** place * 3.0 / rounds for place, label in enumerate(self.qualities)}
        return {
            label: Rating([self.qualities[label] + wrong[label] for _ in seeds], [self.excesses.get(label, 0.0)])
            for label in there
        }


def ladder(rounds: int) -> list[Rung]:
    return rungs_of(Settings.of({"num-rounds": rounds}), SEEDS)


def searched(numbers: Numbers, budget: float, at_a_time: int = 2) -> Search:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "time", SimpleNamespace(monotonic=lambda: numbers.now))
        found = Search(numbers, [*numbers.qualities], ladder(numbers.rounds), range(8), at_a_time)
        found.run(until=numbers.now + budget)
    return found


def several(count: int, best: int | None = None) -> dict[str, float]:
    qualities = {BASELINE: 50.0, EQUAL: 51.0, **{f"method-{k}": 40.0 + k for k in range(count)}}
    return qualities | ({} if best is None else {f"method-{best}": 90.0})


def test_the_ladder_ends_with_all_rounds_and_never_begins_below_five() -> None:
    assert ladder(45) == [Rung(5, 1, 1), Rung(15, 2, 2), Rung(45, 4, 8)]
    assert ladder(10) == [Rung(5, 1, 1), Rung(5, 2, 2), Rung(10, 4, 8)]
    assert ladder(3) == [Rung(3, 1, 1), Rung(3, 2, 2), Rung(3, 4, 8)]


def test_rungs_that_are_the_same_are_one() -> None:
    assert rungs_of(Settings.of({"num-rounds": 10}), [(2, 2)] * 3) == [Rung(5, 2, 2), Rung(10, 2, 2)]


def test_runs_whose_steps_decay_are_judged_after_their_last_round() -> None:
    decaying = Settings.of({"num-rounds": 30, "method": "fedavgn", "fedavgn.decay": 0.5})
    scheduled = Settings.of({"num-rounds": 30, "schedule": "cosine"})
    for settings in (decaying, scheduled):
        assert rungs_of(settings, [(2, 2)] * 3) == [Rung(30, 2, 2)]


@given(rounds=st.integers(1, 5000))
def test_rungs_rise(rounds: int) -> None:
    lengths = [rung.rounds for rung in ladder(rounds)]
    assert lengths == sorted(lengths)
    assert lengths[-1] == rounds


@pytest.mark.parametrize("best", [0, 7, 19])
def test_the_best_is_found_with_time_enough_wherever_it_stands(best: int) -> None:
    found = searched(Numbers(several(20, best)), budget=1e6)
    assert choose(found.ratings) == f"method-{best}"
    assert found.rung == Rung(45, 8, 8)
    assert found.untried == ()


def test_a_third_goes_on_and_only_these_have_more_rounds() -> None:
    numbers = Numbers(several(18))
    found = searched(numbers, budget=1e6)
    first = {label for label, _, rounds in numbers.asked if rounds == 5}
    second = {label for label, _, rounds in numbers.asked if rounds == 15}
    third = {label for label, _, rounds in numbers.asked if rounds == 45}
    assert first == set(numbers.qualities)
    assert second == {BASELINE, EQUAL, *(f"method-{k}" for k in range(12, 18))}
    assert third == {BASELINE, EQUAL, "method-16", "method-17"}
    assert [each.method for each in found.tried[:4]] == ["method-17", "method-16", EQUAL, BASELINE]
    assert {each.method for each in found.tried} == set(numbers.qualities)


@given(budget=st.floats(0.5, 3000.0), count=st.integers(0, 25), at_a_time=st.integers(1, 8))
def test_no_run_goes_on_after_the_time_and_what_was_left_out_is_named(
    budget: float, count: int, at_a_time: int
) -> None:
    numbers = Numbers(several(count))
    found = searched(numbers, budget, at_a_time)
    assert numbers.now <= budget
    known = {each.method for each in found.tried}
    assert known.isdisjoint(found.untried)
    assert known | {*found.untried} == set(numbers.qualities)
    if found.rung is not None:
        assert BASELINE in found.ratings
        assert all(len(each.values) == found.rung.seeds for each in found.ratings.values())


def test_a_time_for_nothing_judges_nobody() -> None:
    found = searched(Numbers(several(5)), budget=3.0)
    assert found.rung is None
    assert found.ratings == {}
    assert len(found.untried) == 7


def test_short_time_leaves_out_the_last_candidates_and_still_climbs() -> None:
    numbers = Numbers(several(25, best=1))
    found = searched(numbers, budget=300.0)
    assert found.untried
    assert found.untried[-1] == "method-24"
    assert found.rung is not None
    assert found.rung.rounds == 45
    assert choose(found.ratings) == "method-1"


def test_what_has_been_run_is_not_run_again_and_more_time_goes_further() -> None:
    numbers = Numbers(several(25, best=24))
    first = searched(numbers, budget=200.0)
    before = [*numbers.asked]
    second = searched(numbers, budget=1e6)
    assert len({*numbers.asked}) == len(numbers.asked)
    assert numbers.asked[: len(before)] == before
    assert choose(first.ratings) != choose(second.ratings) == "method-24"


def test_one_that_fails_is_left_out_and_the_others_go_on() -> None:
    numbers = Numbers(several(9, best=4), broken=["method-8"])
    found = searched(numbers, budget=1e6)
    assert "method-8" not in {each.method for each in found.tried}
    assert "method-8" not in found.untried
    assert choose(found.ratings) == "method-4"


def test_a_single_candidate_beside_the_baseline_climbs_too() -> None:
    numbers = Numbers({BASELINE: 1.0, EQUAL: 2.0})
    assert searched(numbers, budget=1e6).rung == Rung(45, 8, 8)


def test_a_constraint_is_kept_by_the_choice_and_missing_it_costs_a_place_before() -> None:
    numbers = Numbers(several(18), excesses={"method-17": 30.0, "method-16": 0.5})
    found = searched(numbers, budget=1e6)
    assert "method-17" not in {label for label, _, rounds in numbers.asked if rounds > 5}
    assert "method-16" in found.ratings
    assert choose(found.ratings) == "method-15"


def test_nobody_is_chosen_where_nobody_keeps_the_constraints() -> None:
    assert choose({"a": Rating([1.0], [0.1]), "b": Rating([2.0], [0.0, 0.2])}) is None


def test_low_is_best_where_the_wish_says_low() -> None:
    ratings = {
        "a": Rating([3.0], high=False),
        "b": Rating([1.0], high=False),
        "c": Rating([2.0], high=False),
    }
    assert choose(ratings) == "b"
    assert survivors(ratings, ["a"]) == ["b", "a"]

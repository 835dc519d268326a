import math
import time
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds.roster import Roster
from fairbloom.rounds.sampling import sample, share

from .test_waits import Day

NAMES = [f"client-{k:02d}" for k in range(100)]


def never(nodes: list[int]) -> dict[int, str]:
    raise AssertionError(f"asked {nodes}")


def draw(
    names: list[str], fraction: float, minimum: int = 1, seed: int = 0, number: int = 1
) -> list[str]:
    return sample(names, share(fraction, len(names), minimum), seed, "train", number)


# The draw -----------------------------------------------------------------------------------------


@given(
    total=st.integers(0, 100),
    fraction=st.floats(0.001, 1.0),
    minimum=st.integers(1, 120),
    seed=st.integers(0, 10**20),
)
def test_a_draw_is_in_order_and_without_replacement(
    total: int, fraction: float, minimum: int, seed: int
) -> None:
    drawn = draw(NAMES[:total], fraction, minimum, seed)
    assert len(drawn) == min(max(math.ceil(Fraction(str(fraction)) * total), minimum), total)
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(NAMES[:total])


@given(
    seed=st.integers(0, 1000),
    number=st.integers(1, 1000),
    names=st.permutations([str(k) for k in range(20)]),
)
def test_the_draw_depends_on_names_seed_and_round_alone(
    seed: int, number: int, names: list[str]
) -> None:
    roster = Roster(time)
    # in the order in which the nodes came, by node id
    roster.refresh(dict(enumerate(names)), never)
    assert list(roster.online) == roster.free == sorted(names)
    assert draw(roster.free, 0.3, 1, seed, number) == draw(sorted(names), 0.3, 1, seed, number)


class Many(Sequence[str]):
    """A million names in order, none of which exists before it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, place: Any) -> Any:
        if place >= len(self):
            raise IndexError(place)
        self.asked.append(place)
        return f"client-{place:06d}"


def test_of_a_million_names_only_the_drawn_are_looked_at() -> None:
    names = Many()
    drawn = sample(names, 100, 0, "train", 1)
    assert len(names.asked) == len(set(drawn)) == 100
    assert drawn == sorted(drawn)
    assert max(names.asked) > 900_000 > 100_000 > min(names.asked)


def test_seed_round_and_purpose_each_make_another_draw() -> None:
    draws = [
        tuple(draw(NAMES, 0.1, 1, seed, number)) for seed in range(5) for number in range(1, 6)
    ]
    assert len(set(draws)) == len(draws)
    assert sample(NAMES, 10, 0, "evaluate", 1) != draw(NAMES, 0.1)


def test_every_client_and_every_pair_is_drawn_equally_often(subtests: pytest.Subtests) -> None:
    rounds = 3000
    names = NAMES[:6]
    draws = [draw(names, 0.5, 1, 0, number) for number in range(1, rounds + 1)]
    singles = Counter(name for drawn in draws for name in drawn)
    pairs = Counter((a, b) for drawn in draws for a in drawn for b in drawn if a < b)
    for counted, chance, kinds in ((singles, 0.5, 6), (pairs, 0.2, 15)):
        with subtests.test(counted=counted, chance=chance):
            assert len(counted) == kinds
            deviation = 4 * math.sqrt(rounds * chance * (1 - chance))
            assert all(abs(times - rounds * chance) < deviation for times in counted.values())


# Nodes online -------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Day:
    return Day()


@pytest.fixture
def roster(clock: Day) -> Roster:
    return Roster(clock)


def test_a_node_is_asked_once_and_again_only_when_it_comes_anew(roster: Roster) -> None:
    asked = []

    def ask(nodes: list[int]) -> dict[int, str]:
        asked.append(nodes)
        return {node: f"site-{node}" for node in nodes}

    for online in ([3, 5], [3, 5], [3, 5, 4], [5], [3, 5]):
        roster.refresh(dict.fromkeys(online, ""), ask)
    assert asked == [[3, 5], [4], [3]]
    assert roster.online == {"site-3": 3, "site-5": 5}


def test_a_silent_node_is_asked_again_before_it_takes_part(roster: Roster) -> None:
    roster.refresh({3: "", 4: ""}, lambda nodes: {4: "b"})
    assert roster.online == {"b": 4}
    roster.refresh({3: "", 4: ""}, lambda nodes: dict.fromkeys(nodes, "a"))
    assert roster.online == {"a": 3, "b": 4}


def test_a_node_that_owes_a_reply_keeps_its_name_while_away(clock: Day, roster: Roster) -> None:
    """It is not asked before its time is over, so its name could not be asked for again."""
    roster.refresh({3: "", 5: ""}, lambda nodes: {node: f"site-{node}" for node in nodes})
    roster.expect_reply("message", 3, clock.time(), 1000.0)
    roster.refresh({5: ""}, never)
    assert roster.online == {"site-5": 5}
    roster.refresh({3: "", 5: ""}, never)
    assert roster.online == {"site-3": 3, "site-5": 5}
    assert roster.free == ["site-5"]


@pytest.mark.parametrize("first", [{}, {9: "hospital"}, {2: ""}])
def test_a_registered_name_can_not_be_claimed(first: dict[int, str], roster: Roster) -> None:
    """Neither when both come together, nor before, nor after; and it needs no question."""
    roster.refresh(first, never if 9 in first else lambda nodes: dict.fromkeys(nodes, "hospital"))
    roster.refresh({9: "hospital", 2: ""}, lambda nodes: {2: "hospital"})
    assert roster.online == {"hospital": 9}
    assert roster.free == ["hospital"]


def test_a_name_that_a_node_holds_is_not_given_to_a_second_one(roster: Roster) -> None:
    roster.refresh({9: ""}, lambda nodes: {9: "hospital"})
    roster.refresh({9: "", 2: ""}, lambda nodes: {2: "hospital"})
    assert roster.online == {"hospital": 9}
    roster.refresh({2: ""}, lambda nodes: {})  # its holder has left
    assert roster.online == {"hospital": 2}


def test_a_node_cannot_take_the_id_of_another_for_its_name(roster: Roster) -> None:
    roster.refresh({2: "", 9: ""}, lambda nodes: {2: "9", 9: "9"})
    assert roster.online == {"9": 9}


# Debts --------------------------------------------------------------------------------------------


def test_a_client_that_owes_a_reply_is_online_but_not_free(roster: Roster) -> None:
    roster.refresh({3: "a", 4: "b"}, never)
    roster.expect_reply("first", 3, 0.0, math.inf)
    roster.expect_reply("second", 3, 0.0, math.inf)
    assert roster.pending == ["first", "second"]
    roster.clear(["first", "of another run"])
    assert list(roster.online) == ["a", "b"]
    assert roster.free == ["b"]
    roster.clear(["second"])
    assert roster.free == ["a", "b"]


def silent_for(roster: Roster, clock: Day) -> float:
    """Return for how long a node is asked nothing that does not answer a message of ten seconds."""
    made = clock.now
    roster.expect_reply("message", 3, clock.time(), 10.0)
    while not roster.free:
        clock.sleep(1.0)
    return clock.now - made


def test_the_pause_doubles_and_restarts_after_an_answer(clock: Day, roster: Roster) -> None:
    roster.refresh({3: "a"}, never)
    assert [silent_for(roster, clock) for _ in range(4)] == [20.0, 30.0, 50.0, 90.0]
    roster.reset_backoff(3)
    assert silent_for(roster, clock) == 20.0
    roster.expect_reply("late", 3, clock.time(), 10.0)
    roster.clear(["late"])
    assert (roster.free, silent_for(roster, clock)) == (["a"], 20.0)


def test_the_longest_pause_is_a_day(clock: Day, roster: Roster) -> None:
    roster.refresh({3: "a"}, never)
    for number in range(2000):
        roster.expect_reply(str(number), 3, clock.time(), 10.0)
    clock.now = 10.0 + 86400.0
    assert roster.free == ["a"]

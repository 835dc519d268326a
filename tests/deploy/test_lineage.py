"""One process after another, or two machines with one state folder."""

import itertools

import pytest

from fairbloom.deploy.fleet.lineage import KNOWN, Lineage, Verdict

USUAL, COPIED, WAITS = Verdict.USUAL, Verdict.COPIED, Verdict.WAITS

# Calls of processes, by their names and the numbers of their starts, each with whether the process
# that called last is online, and with what the call says.
Calls = list[tuple[str, int, bool, Verdict]]

CASES: dict[str, Calls] = {
    "one process": [("a", 1, False, USUAL), ("a", 1, True, USUAL)],
    "restarts": [("a", 1, False, USUAL), ("b", 2, True, USUAL), ("c", 3, False, USUAL)],
    "unknown starts are not judged": [
        *[("a", 5, False, USUAL), ("", 0, True, USUAL), ("a", 5, True, USUAL)],
    ],
    "a clone of a machine that runs": [
        *[("a", 4, False, USUAL), ("clone", 5, True, USUAL), ("a", 4, True, COPIED)],
        *[("clone", 5, True, WAITS), ("a", 4, True, USUAL), ("clone", 5, True, WAITS)],
    ],
    "both are started from one image": [
        *[("a", 5, False, USUAL), ("clone", 5, True, WAITS), ("a", 5, True, USUAL)],
        ("clone", 5, True, WAITS),
    ],
    "the first restarts while the clone waits": [
        *[("a", 4, False, USUAL), ("clone", 5, True, USUAL), ("a", 4, True, COPIED)],
        *[("again", 5, True, USUAL), ("clone", 5, True, WAITS), ("again", 5, True, USUAL)],
    ],
    "the clone goes on when the first is away, which then waits": [
        *[("a", 4, False, USUAL), ("clone", 5, True, USUAL), ("a", 4, True, COPIED)],
        *[("clone", 5, False, USUAL), ("again", 5, True, WAITS), ("again", 5, False, COPIED)],
    ],
    "a clone that restarts is noticed again": [
        *[("a", 4, False, USUAL), ("clone", 5, True, USUAL), ("a", 4, True, COPIED)],
        *[("clone-again", 6, True, USUAL), ("a", 4, True, COPIED), ("clone-again", 6, True, WAITS)],
    ],
    "a backup while the first is online, and after it": [
        *[("a", 9, False, USUAL), ("backup", 3, True, WAITS), ("backup", 3, False, COPIED)],
        *[("backup", 3, True, USUAL), ("restart", 4, False, USUAL)],
    ],
}


@pytest.mark.parametrize("calls", CASES.values(), ids=CASES)
def test_what_a_call_says_of_its_client(calls: Calls) -> None:
    lineage = Lineage()
    found = [
        lineage.judge(process.encode(), number, online=online)
        for process, number, online, _ in calls
    ]
    assert found == [verdict for *_, verdict in calls]


@pytest.mark.parametrize("begins", list(itertools.permutations("abc")))
def test_of_three_copies_one_goes_on(begins: tuple[str, ...]) -> None:
    """Whatever the order in which they begin; two of them have the same number."""
    lineage = Lineage()
    numbers = {"a": 4, "b": 5, "c": 5}
    for _ in range(3):
        verdicts = [lineage.judge(name.encode(), numbers[name], online=True) for name in begins]
    assert verdicts.count(WAITS) == 2


def test_many_restarts_are_no_copies_and_hold_no_memory() -> None:
    lineage = Lineage()
    for number in range(1000):
        assert lineage.judge(f"{number}".encode(), number, online=True) == USUAL
    assert len(lineage._before) == KNOWN

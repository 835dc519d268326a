"""A deadline counts seconds by the clock that it is given."""

import math

import pytest

from fairbloom.system.deadline import Deadline
from tests.rounds.test_waits import Day


def test_a_deadline_passes_with_its_last_second() -> None:
    clock = Day()
    clock.sleep(7.0)
    deadline = Deadline.after(3.0, clock.monotonic)
    assert (deadline.elapsed, deadline.left, deadline.is_over) == (0.0, 3.0, False)
    clock.sleep(2.0)
    assert (deadline.elapsed, deadline.left, deadline.is_over) == (2.0, 1.0, False)
    clock.sleep(1.0)
    assert (deadline.left, deadline.is_over) == (0.0, True)
    clock.sleep(5.0)
    assert (deadline.elapsed, deadline.left, deadline.is_over) == (8.0, 0.0, True)


@pytest.mark.parametrize("seconds", [None, math.inf])
def test_a_deadline_without_seconds_never_passes(seconds: float | None) -> None:
    clock = Day()
    deadline = Deadline.after(seconds, clock.monotonic)
    clock.sleep(1e12)
    assert (deadline.left, deadline.is_over) == (math.inf, False)


def test_a_deadline_may_begin_in_the_past() -> None:
    clock = Day()
    made = clock.time() - 4.0
    assert Deadline(made, 5.0, clock.time).left == 1.0
    assert Deadline(made, 4.0, clock.time).is_over

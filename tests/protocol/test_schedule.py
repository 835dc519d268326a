"""Learning rates of rounds: shapes, warm-up and decay."""

import math

import pytest
from hypothesis import given, strategies as st

from fairbloom.protocol.schedule import learning_rate_in, schedule_factor
from fairbloom.protocol.settings import RunSettings


@given(st.sampled_from(["linear", "cosine"]), st.integers(0, 20), st.integers(1, 200))
def test_rates_rise_to_their_height_then_fall_and_are_never_zero(
    shape: str, warmup: int, count: int
) -> None:
    factors = [schedule_factor(shape, warmup, done, count) for done in range(count)]
    assert all(0.0 < factor <= 1.0 for factor in factors)
    rising = factors[: warmup + 1]
    falling = factors[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    if count > warmup:
        assert factors[warmup] == 1.0


def test_the_closed_forms_after_a_warm_up() -> None:
    assert [schedule_factor("linear", 2, done, 6) for done in range(6)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]
    )
    assert [schedule_factor("cosine", 1, done, 5) for done in range(5)] == pytest.approx(
        [0.5, 1.0, *((1 + math.cos(math.pi * over / 4)) / 2 for over in (1, 2, 3))]
    )
    assert [schedule_factor("constant", 3, done, 5) for done in range(5)] == [
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
    ]
    # A round beyond the last has the rate of the last.
    assert schedule_factor("cosine", 0, 50, 40) == schedule_factor("cosine", 0, 39, 40)


def settings(**changes: object) -> RunSettings:
    return RunSettings.of(
        {"learning-rate": 0.3, **{key.replace("_", "-"): value for key, value in changes.items()}}
    )


def test_a_schedule_multiplies_the_decay() -> None:
    chosen = settings(schedule="linear", num_rounds=10, learning_rate_decay=0.5)
    assert learning_rate_in(chosen, 6) == pytest.approx(0.3 * 0.5**5 * 0.5)
    assert chosen.paced

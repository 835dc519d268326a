"""Schedules of the learning rate against their closed forms, and against PyTorch's."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from fairbloom.client.work import learning_rate_in, schedule_factor
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


def test_a_cosine_is_that_of_pytorchs_scheduler(subtests: pytest.Subtests) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    ours = [0.3 * schedule_factor("cosine", 0, done, 40) for done in range(40)]
    for rate in ours:
        with subtests.test(rate=rate):
            assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
            optimizer.step()
            scheduler.step()


def test_the_closed_forms_after_a_warm_up() -> None:
    assert [schedule_factor("linear", 2, done, 6) for done in range(6)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]
    )
    cosine = [schedule_factor("cosine", 1, done, 5) for done in range(5)]
    assert cosine == pytest.approx(
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


def test_constant_is_no_schedule() -> None:
    plain = [learning_rate_in(settings(learning_rate_decay=0.9), number) for number in range(1, 20)]
    constant = settings(schedule="constant", warmup=0, learning_rate_decay=0.9)
    assert [learning_rate_in(constant, number) for number in range(1, 20)] == plain


def test_a_schedule_multiplies_the_decay() -> None:
    chosen = settings(schedule="linear", num_rounds=10, learning_rate_decay=0.5)
    assert learning_rate_in(chosen, 6) == pytest.approx(0.3 * 0.5**5 * 0.5)
    assert chosen.paced

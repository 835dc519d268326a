"""The budget against published numbers, and the filter that no order of requests passes."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.client.private.budget import (
    LOSS_UNITS,
    STEP_UNITS,
    Budget,
    epsilon_of,
    log_delta,
    mu_of,
)

DELTA = 1e-5


@pytest.mark.parametrize(("epsilon", "mu"), [(8.0, 1.666), (3.0, 0.719), (1.0, 0.268)])
def test_mu_of_epsilon(epsilon: float, mu: float) -> None:
    assert mu_of(epsilon, DELTA) == pytest.approx(mu, abs=5e-4)


@pytest.mark.parametrize(("epsilon", "twice"), [(1.0, 2.15), (3.0, 6.71), (8.0, 19.1)])
def test_a_replaced_row_costs_twice_mu(epsilon: float, twice: float) -> None:
    assert Budget(epsilon, DELTA).replacement_epsilon == pytest.approx(twice, rel=3e-3)


@pytest.mark.parametrize(("count", "epsilon"), [(2, 4.46), (3, 5.66), (5, 7.67)])
def test_accounts_add(count: int, epsilon: float) -> None:
    assert epsilon_of(math.sqrt(count) * mu_of(3.0, DELTA), DELTA) == pytest.approx(
        epsilon, abs=6e-3
    )


def test_steps_of_noise_five() -> None:
    """20 full-batch steps of noise 5 are (3.849, 1e-5)."""
    assert epsilon_of(math.sqrt(20) / 5.0, DELTA) == pytest.approx(3.849, abs=1e-3)


@pytest.mark.parametrize(("epsilon", "steps"), [(8.0, 177), (3.0, 33), (1.0, 4)])
def test_most_steps_of_noise_eight(epsilon: float, steps: int) -> None:
    assert math.floor(mu_of(epsilon, DELTA) ** 2 * 64.0) == steps


def test_noise_of_ninety_steps() -> None:
    budget = Budget(3.0, DELTA, 90, 1)
    assert budget.sigma == pytest.approx(14.75, abs=5e-3)
    assert budget.loss_sigma == pytest.approx(29.5, abs=1e-2)
    assert math.sqrt(2.0) * budget.test_sigma == pytest.approx(2.0, abs=0.05)
    assert math.sqrt(2.0) * Budget(3.0, DELTA, 90, 10).test_sigma == pytest.approx(6.2, abs=0.05)


@given(st.floats(0.01, 20.0), st.floats(-12.0, -2.0))
def test_mu_never_exceeds_epsilon_and_delta(epsilon: float, exponent: float) -> None:
    delta = 10.0**exponent
    mu = mu_of(epsilon, delta)
    assert log_delta(epsilon, mu) <= math.log(delta) + 1e-12
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [8.0, 3.0, 1.0])
def test_no_order_of_requests_passes_the_budget(epsilon: float) -> None:
    """100,000 random requests, each filtered: the sum of 1/sigma² stays below mu²."""
    random = np.random.default_rng(3)
    requests = random.integers(0, 6, 100_000) * STEP_UNITS + random.integers(0, 2, 100_000)
    budget = Budget(epsilon, DELTA, 90)
    spent = 0
    cost = 0.0
    for units in requests.tolist():
        if spent + units <= budget.units:
            spent += units
            steps, losses = divmod(units, STEP_UNITS)
            cost += steps / budget.sigma**2 + losses / budget.loss_sigma**2
    assert spent == budget.units
    assert cost <= budget.mu**2 * (1.0 + 1e-12)
    assert (STEP_UNITS, LOSS_UNITS) == (4, 1)


@pytest.mark.parametrize("values", [(0.0, DELTA), (-1.0, DELTA), (math.nan, DELTA), (1.0, 0.0)])
def test_impossible_budgets_are_refused(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        mu_of(*values)

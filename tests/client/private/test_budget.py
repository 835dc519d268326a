"""The budget against published numbers, and the filter that no order of requests passes."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.client.private.budget import (
    LOSS_UNITS,
    STEP_UNITS,
    Budget,
    Price,
    epsilon_of,
    log_delta,
    mu_of,
)
from fairbloom.client.private.mechanism import TEST_SENSITIVITY

DELTA = 1e-5


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [
        *((8.0, DELTA, 1.666), (3.0, DELTA, 0.719), (1.0, DELTA, 0.268)),
        *((8.0, 1e-6, 1.5315451), (3.0, 1e-6, 0.64772653), (1.0, 1e-6, 0.23670438)),
    ],
)
def test_mu_of_epsilon(epsilon: float, delta: float, mu: float) -> None:
    digits = 1e-7 * mu if delta < DELTA else 5e-4
    assert mu_of(epsilon, delta) == pytest.approx(mu, abs=digits)


@pytest.mark.parametrize(("epsilon", "twice"), [(1.0, 2.15), (3.0, 6.71), (8.0, 19.1)])
def test_a_replaced_row_costs_twice_mu(epsilon: float, twice: float) -> None:
    assert Budget(epsilon, DELTA).replacement_epsilon == pytest.approx(twice, rel=3e-3)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (math.sqrt(2) * mu_of(3.0, DELTA), 4.4634),  # two accounts, or a row in both splits
        (math.sqrt(3) * mu_of(3.0, DELTA), 5.6558),
        (math.sqrt(5) * mu_of(3.0, DELTA), 7.6651),
        (math.sqrt(20) / 5.0, 3.8486),  # 20 full-batch steps of noise 5
    ],
)
def test_accounts_and_steps_add(mu: float, epsilon: float) -> None:
    assert epsilon_of(mu, DELTA) == pytest.approx(epsilon, abs=6e-5)


@pytest.mark.parametrize(("epsilon", "steps"), [(8.0, 177), (3.0, 33), (1.0, 4)])
def test_most_steps_of_noise_eight(epsilon: float, steps: int) -> None:
    assert math.floor(mu_of(epsilon, DELTA) ** 2 * 64.0) == steps


def test_noise_of_ninety_steps() -> None:
    budget = Budget(3.0, DELTA, 90, 1)
    assert budget.sigma == pytest.approx(14.7495, abs=5e-5)
    assert budget.sigma_of(LOSS_UNITS) == pytest.approx(29.499, abs=1e-3)
    assert budget.test_sigma == pytest.approx(1.39059, abs=5e-6)


@pytest.mark.parametrize(("tests", "rows"), [(1, 1.418133), (2, 2.005542), (5, 3.171041)])
def test_noise_of_test_reports_in_rows(tests: int, rows: float) -> None:
    noise = Budget(3.0, DELTA, 90, tests).test_sigma * TEST_SENSITIVITY
    assert noise == pytest.approx(rows, rel=1e-5)


# Of 450 units, or 1,000 with 200 steps: rounds, steps of each, whether each has a loss.
PRICES = [
    ((450, 30, 1, True), (12, 3), 8.5156),
    ((450, 30, 1, False), (15, 3), 7.616594),
    ((450, 10, 1, True), (36, 9), 4.916490),
    ((450, 1, 1, True), (360, 90), None),
    ((450, 40, 1, True), (9, 2), None),
    ((450, 20, 3, False), (7, 1), None),
    ((450, 20, 3, True), (6, 1), 12.04289),
    ((450, 1000, 1, True), (4, 1), 14.7495),
    ((449, 30, 1, True), (11, 2), None),
]


@pytest.mark.parametrize(("asked", "price", "sigma"), PRICES, ids=str)
def test_prices(asked: tuple[int, int, int, bool], price: Price, sigma: float | None) -> None:
    left, rounds, steps, with_loss = asked
    found = Price.of(left, rounds, steps, with_loss=with_loss)
    assert found == price
    if sigma is not None:
        assert Budget(3.0, DELTA).sigma_of(found.step) == pytest.approx(sigma, rel=1e-6, abs=5e-5)


def test_prices_of_other_budgets() -> None:
    price = Price.of(1000, 30, 1, with_loss=True)
    assert price == (26, 6)
    assert Budget(3.0, DELTA, 200).sigma_of(26) == pytest.approx(8.624095, rel=1e-6)
    for epsilon, sigma in ((8.0, 3.675637), (1.0, 22.84536)):
        assert Budget(epsilon, DELTA).sigma_of(12) == pytest.approx(sigma, rel=1e-6)


@given(st.integers(0, 5000), st.integers(1, 60), st.integers(1, 4), st.booleans())
def test_evenly_spent_units_suffice(left: int, rounds: int, steps: int, with_loss: bool) -> None:
    """With as many units as the lowest price asks for, no round is refused."""
    left = max(left, rounds * (STEP_UNITS * steps + LOSS_UNITS * with_loss))
    for still in range(rounds, 0, -1):
        price = Price.of(left, still, steps, with_loss=with_loss)
        assert price.step >= STEP_UNITS
        assert price.loss >= LOSS_UNITS
        left -= price.step * steps + price.loss * with_loss
        assert left >= 0


def test_a_late_unit_is_spent_at_the_end() -> None:
    left = 449
    prices = list[Price]()
    for still in range(30, 0, -1):
        prices.append(Price.of(left, still, 1, with_loss=True))
        left -= sum(prices[-1])
    assert prices == [(11, 2), *[(12, 3)] * 29]
    assert left == 1


def test_a_smaller_budget_in_units() -> None:
    budget = Budget(3.0, DELTA)
    assert budget.units_within(mu_of(1.0, DELTA)) == 62
    assert budget.units_within(mu_of(2.0, DELTA)) == 218
    assert budget.units_within(budget.mu) == budget.units_within(mu_of(8.0, DELTA)) == 450


@pytest.mark.parametrize(("units", "epsilon"), [(150, 1.62057), (300, 2.38616), (400, 2.80633)])
def test_epsilon_of_what_is_spent(units: int, epsilon: float) -> None:
    assert Budget(3.0, DELTA).epsilon_after(units) == pytest.approx(epsilon, abs=5e-6)


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
            cost += steps / budget.sigma**2 + losses / budget.sigma_of(LOSS_UNITS) ** 2
    assert spent == budget.units
    assert cost <= budget.mu**2 * (1.0 + 1e-12)
    assert (STEP_UNITS, LOSS_UNITS) == (4, 1)


@pytest.mark.parametrize(
    "values", [(0.0, DELTA), (-1.0, DELTA), (math.nan, DELTA), (1.0, 0.0), (1e-12, 1e-300)]
)
def test_impossible_budgets_are_refused(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"must be above 0|beyond what"):
        mu_of(*values)

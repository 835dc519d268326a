"""FCFL: its reductions, both stages in closed form and against vectors, and its memory."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds.cohort import Cohort
from fairbloom.strategies import FCFL
from fairbloom.strategies.fcfl import share_of_loss
from fairbloom.strategies.simplex import steepest_common_weights

from .helpers import advance, client_names, coefficients, cohort_of, step_of

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, m: int) -> dict[str, Any]:
    """Return what m clients reply: gradients in general position, and rates that are not the
    same."""
    rng = np.random.default_rng(seed)
    return {
        "U": rng.uniform(0.2, 2.0, (m, 1)) * (rng.normal(size=(m, 8)) + 0.5 * rng.normal(size=8)),
        "seconds": rng.uniform(0.2, 2.0, (m, 1))
        * (rng.normal(size=(m, 8)) + 0.5 * rng.normal(size=8)),
        "losses": rng.uniform(0.2, 3.0, m),
        "disparities": rng.uniform(-0.3, 0.3, m),
        "rates": rng.uniform(0.05, 0.5, m),
    }


# Closed forms -------------------------------------------------------------------------------------


@given(seed=seeds, within=st.booleans())
def test_x_solves_the_linear_program_of_two_variables(seed: int, within: bool) -> None:
    """Of d = x f + (1 − x) g: the most of ⟨d, f⟩ within the budgets, else of ⟨d, g⟩ with ⟨d, f⟩ ≥
    0."""
    rng = np.random.default_rng(seed)
    f, g = rng.normal(size=(2, 4)) * rng.uniform(0.2, 2.0, (2, 1))
    p = f @ f
    q = f @ g
    s = g @ g
    x = share_of_loss(p, q, s, within_budgets=within)
    grid = np.linspace(0.0, 1.0, 2001)
    along_f = grid * p + (1.0 - grid) * q
    along_g = grid * q + (1.0 - grid) * s
    d = x * f + (1.0 - x) * g
    if within:
        assert d @ f >= along_f.max() - 1e-9
    else:
        assert d @ f >= -1e-9
        assert d @ g >= along_g[along_f >= 0.0].max() - 1e-9
    if not within and q < 0.0:
        assert d @ f == pytest.approx(0.0, abs=1e-9)


def test_a_step_by_hand() -> None:
    """δ so small that each softmax is the largest entry; both rates 0.1, and client 2 a third
    beyond its budget."""
    replies = {
        "U": 0.1 * np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]),
        "seconds": 0.1 * np.array([[0.0, 0.0, 3.0], [0.0, -1.0, 0.0]]),
        "losses": [1.0, 2.0],
        "disparities": [0.01, -0.3],
        "rates": [0.1, 0.1],
    }
    # g_l = (0, 2, 0), g_g = (0, −1, 0): p = 4, q = −2, so x = 2 / 6 and d = (0, 0, 0)
    np.testing.assert_allclose(step_of(FCFL(delta=1e-4), **replies), 0.0, atol=1e-12)
    # without the second client's excess: g_g is the first one's, and d = g_l since ‖g_l‖² ≥ ⟨g_l,
    # g_g⟩ = 0
    method = FCFL(delta=1e-4, budgets={"client-001": 0.3})
    np.testing.assert_allclose(
        step_of(method, **replies), 0.1 * np.array([0.0, 2.0, 0.0]), atol=1e-12
    )
    # the first beyond its own budget: q = 0 < s, so d = g_g
    method = FCFL(delta=1e-4, budgets={"client-001": 0.3, "client-000": 0.0})
    np.testing.assert_allclose(
        step_of(method, **replies), 0.1 * np.array([0.0, 0.0, 3.0]), atol=1e-12
    )


# Stage 2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 3])
def test_without_any_gradient_there_is_no_step(m: int) -> None:
    zero = cohort_of(np.zeros((m, 4)), seconds=np.zeros((m, 4)), disparities=np.full(m, 0.2))
    assert np.isfinite(coefficients(FCFL(stage1_rounds=800), zero)).all()
    assert not coefficients(FCFL(stage1_rounds=0), zero).any()


def test_a_disparity_without_a_gradient_is_no_row() -> None:
    replies = drawn(2, 3)
    replies["seconds"] = np.zeros_like(replies["U"])
    c = coefficients(FCFL(stage1_rounds=0, budget=0.0), cohort_of(**replies))
    assert not c[3:].any()
    assert c[:3].any()


def test_clients_with_equal_gradients_count_alike_in_stage_2() -> None:
    c = coefficients(
        FCFL(stage1_rounds=0),
        cohort_of(**{name: values[[0, 1, 2, 1]] for name, values in drawn(5, 3).items()}),
    )
    assert c[1] == c[3]


@given(seed=seeds, m=st.integers(1, 5))
def test_opposite_gradients_have_no_common_direction(seed: int, m: int) -> None:
    """Then only a step of zero raises no client's loss."""
    R = np.random.default_rng(seed).normal(size=(m, 6))
    R = np.vstack([R, -R])
    weights = steepest_common_weights(R @ R.T, (R @ R.T).mean(axis=1))
    assert weights.min() >= 0.0
    np.testing.assert_allclose(weights @ R, 0.0, atol=1e-6)


# Memory -------------------------------------------------------------------------------------------


def remembered(method: FCFL, cohort: Cohort) -> tuple[float, float]:
    advance(method, cohort)
    return method.past.memory["delta-loss"], method.past.memory["delta-disparity"]


def test_a_temperature_that_nothing_holds_up_never_reaches_zero() -> None:
    """A softmax at a temperature of 0 is 0/0."""
    method = FCFL(delta_min=0.0)
    for number in range(1, 201):
        cohort = cohort_of(
            **drawn(number, 2) | {"seconds": np.zeros((2, 8))}, round=number, past=method.past
        )
        assert np.isfinite(coefficients(method, cohort)).all()
        _, delta = remembered(method, cohort)
    assert 0.0 < delta < 1e-300


# Budgets, terms and metrics -----------------------------------------------------------------------


def test_budgets_may_be_a_text_as_run_configs_have_it() -> None:
    assert FCFL(budgets="site-a=0.02 site-b=1").budgets == {"site-a": 0.02, "site-b": 1.0}
    assert FCFL(budgets="").budgets == FCFL(budgets=None).budgets == FCFL().budgets == {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"site-a": -0.1}, r"budgets\['site-a'\] = -0.1: allowed is float at least 0"),
        ("site-a=-0.1", r"budgets\['site-a'\] = -0.1: allowed is float at least 0"),
        ("site-a", "budgets = 'site-a': 'site-a' does not state a value: write it as name=value"),
        ("site-a=much", r"budgets\['site-a'\] = 'much': allowed is float at least 0"),
        ("site-a=1 site-a=2", "site-a is named twice"),
        ([0.1], r"budgets must be a mapping of names or the text of one, got a list"),
    ],
)
def test_budgets_that_are_no_numbers_of_clients_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FCFL(budgets=wrong)


def test_it_reports_how_many_clients_are_beyond_their_budgets() -> None:
    replies = drawn(1, 4) | {"disparities": np.array([0.05, -0.06, 0.2, 0.0])}
    method = FCFL(budgets={"client-002": 0.3})
    assert method.own_metrics(cohort_of(**replies), np.zeros(8))["over-budget"] == 1.0


def test_a_budget_of_nobody_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    method = FCFL(budgets={"client-000": 0.1, "cleint-001": 0.1})
    for number in (1, 2):
        remembered(
            method, cohort_of(**drawn(1, 2), round=number, online=client_names(2), past=method.past)
        )
    assert [record.getMessage() for record in caplog.records] == [
        "budgets names cleint-001, but no client online has this name: correct it"
    ]

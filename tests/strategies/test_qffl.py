import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import QFedAvg

from .helpers import cohort_of, edgy_updates, generic_updates

# Reductions ---------------------------------------------------------------------------------------------------------


@given(U=edgy_updates(), lipschitz=st.floats(1e-3, 1e3))
def test_q_zero_is_the_unweighted_mean(U: FloatArray, lipschitz: float) -> None:
    F = np.linspace(0.0, 9.0, len(U))
    c = QFedAvg(q=0.0, lipschitz=lipschitz).weigh(cohort_of(U, losses=F, counts=1 + np.arange(len(U))))
    np.testing.assert_allclose(c, 1.0 / len(U), rtol=1e-12)


@given(U=edgy_updates())
def test_zero_updates_leave_the_loss_weighted_mean(U: FloatArray) -> None:
    F = 1.0 + np.arange(len(U))
    c = QFedAvg(q=2.0, lipschitz=3.0).weigh(cohort_of(np.zeros_like(U), losses=F))
    np.testing.assert_allclose(c, F**2 / np.sum(F**2), rtol=1e-12)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_two_clients_by_hand() -> None:
    # q = 1, L = 10: Δ = F·10·u, h = 100‖u‖² + 10 F, so h = 400 + 10 and 100 + 30; c = 10 F / 540
    c = QFedAvg(q=1.0, lipschitz=10.0).weigh(cohort_of(np.array([[2.0, 0.0], [0.6, 0.8]]), losses=[1.0, 3.0]))
    assert c == pytest.approx([10 / 540, 30 / 540])


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0, 15.0])
def test_one_client_takes_a_step_shortened_by_its_own_curvature(q: float) -> None:
    c = QFedAvg(q=q, lipschitz=2.0).weigh(cohort_of(np.array([[3.0, 4.0]]), losses=[0.5]))
    assert c == pytest.approx([1.0 / (1.0 + q * 2.0 * 25.0 / 0.5)])


# Properties ---------------------------------------------------------------------------------------------------------


@given(U=generic_updates(), q=st.floats(0.0, 15.0), L=st.floats(1e-2, 1e2), scale=st.sampled_from((1e-3, 1.0, 1e3)))
def test_gram_form_equals_the_papers_update(U: FloatArray, q: float, L: float, scale: float) -> None:
    F = scale * (1.0 + np.arange(len(U), dtype=np.float64))
    delta = [f**q * L * u for f, u in zip(F, U, strict=True)]
    h = [q * f ** (q - 1) * np.sum((L * u) ** 2) + L * f**q for f, u in zip(F, U, strict=True)]
    c = QFedAvg(q=q, lipschitz=L).weigh(cohort_of(U, losses=F))
    np.testing.assert_allclose(c @ U, np.sum(delta, axis=0) / np.sum(h), rtol=1e-9, atol=1e-12)


@given(U=edgy_updates(min_size=2), q=st.floats(0.0, 15.0))
def test_weights_sum_to_at_most_one_and_rise_with_the_loss(U: FloatArray, q: float) -> None:
    c = QFedAvg(q=q, lipschitz=1.0).weigh(cohort_of(U, losses=1.0 + np.arange(len(U))))
    assert c.min() >= 0.0
    assert c.sum() <= 1.0 + 1e-12
    assert (np.diff(c) >= 0.0).all()


def test_a_large_q_approaches_the_worst_client_alone() -> None:
    c = QFedAvg(q=200.0, lipschitz=1.0).weigh(cohort_of(np.eye(3), losses=[1.0, 2.0, 3.0]))
    assert c[:2] @ np.ones(2) < 1e-30 * c[2]


# Edge cases ---------------------------------------------------------------------------------------------------------


def in_logarithms(F: FloatArray, squared_norms: FloatArray, q: float, L: float) -> FloatArray:
    """The paper's c without an overflow, from logarithms in Python floats."""
    F = np.maximum(F, 1e-10)
    log_weight = [math.log(L) + q * math.log(f) for f in F]
    log_h = [
        value
        for f, s, w in zip(F, squared_norms, log_weight, strict=True)
        for value in (
            w,
            math.log(q) + (q - 1) * math.log(f) + 2 * math.log(L) + math.log(s) if q * s > 0 else -math.inf,
        )
    ]
    return np.exp(np.array(log_weight) - np.logaddexp.reduce(log_h))


@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 1.0, 15.0])
@pytest.mark.parametrize("losses", [[0.0, 1.0], [0.0, 0.0], [1e-30, 1e30], [1e30, 1e30], [1e-11, 1e-12], [-1.0, 2.0]])
@pytest.mark.parametrize("length", [0.0, 1e-30, 1.0, 1e30])
def test_extreme_losses_and_updates_follow_the_formula(q: float, losses: list[float], length: float) -> None:
    U = length * np.array([[1.0, 0.0], [0.6, 0.8]])
    c = QFedAvg(q=q, lipschitz=10.0).weigh(cohort_of(U, losses=losses))
    np.testing.assert_allclose(
        c, in_logarithms(np.array(losses), np.sum(U**2, axis=1), q, 10.0), rtol=1e-9, atol=1e-300
    )


def test_the_floor_is_reached_at_exactly_1e_minus_10() -> None:
    U = np.eye(2)
    at_zero = QFedAvg(q=0.5, lipschitz=1.0).weigh(cohort_of(U, losses=[0.0, 1.0]))
    at_floor = QFedAvg(q=0.5, lipschitz=1.0).weigh(cohort_of(U, losses=[1e-10, 1.0]))
    np.testing.assert_array_equal(at_zero, at_floor)

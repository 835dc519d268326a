from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import DeltaFL, FedAvg

from .helpers import cohort_of, losses_and_counts


def weigh(theta: float, losses: list[float] | FloatArray, counts: list[float] | FloatArray | None = None) -> FloatArray:
    weighting = "uniform" if counts is None else "examples"
    cohort = cohort_of(np.eye(len(losses)), losses=losses, counts=counts, weighting=weighting)
    return DeltaFL(theta=theta, weighting=weighting).weigh(cohort)


# Reductions ---------------------------------------------------------------------------------------------------------


@given(m=st.integers(1, 30))
def test_theta_one_is_fedavg(m: int) -> None:
    F, n = losses_and_counts(m)
    for weighting in ("examples", "uniform"):
        cohort = cohort_of(np.eye(m), losses=F, counts=n, weighting=weighting)
        expected = FedAvg(weighting=weighting).weigh(cohort)
        np.testing.assert_allclose(DeltaFL(theta=1.0, weighting=weighting).weigh(cohort), expected, rtol=1e-13)


@pytest.mark.parametrize("theta", [1e-3, 1e-8, 1e-30])
def test_towards_zero_it_is_the_worst_client_alone(theta: float) -> None:
    assert weigh(theta, [1.0, 5.0, 3.0]).tolist() == [0.0, 1.0, 0.0]
    assert weigh(theta, [1.0, 5.0, 3.0], [100, 10, 100]).tolist() == [0.0, 1.0, 0.0]


def test_worst_clients_with_the_same_loss_share_by_their_prior() -> None:
    assert weigh(1e-6, [5.0, 1.0, 5.0], [1, 5, 3]) == pytest.approx([0.25, 0.0, 0.75])


# Closed forms -------------------------------------------------------------------------------------------------------


def test_four_clients_by_hand() -> None:
    # cumulated priors of ascending losses: 0.1, 0.3, 0.6, 1.0
    losses, counts = [3.0, 1.0, 4.0, 2.0], [30, 10, 40, 20]
    assert weigh(0.35, losses, counts) == pytest.approx([0.0, 0.0, 1.0, 0.0])
    assert weigh(0.45, losses, counts) == pytest.approx([3 / 7, 0.0, 4 / 7, 0.0])
    assert weigh(0.75, losses, counts) == pytest.approx([3 / 9, 0.0, 4 / 9, 2 / 9])
    assert weigh(0.95, losses, counts) == pytest.approx([0.3, 0.1, 0.4, 0.2])


@pytest.mark.parametrize("m", [2, 3, 5, 7, 10, 20, 49, 100])
def test_ties_of_cumulated_prior_and_theta_are_exact(m: int) -> None:
    """With theta = j/m the m − j lowest losses hold exactly 1 − theta: the (m − j)-th of them is Q, in the tail."""
    for j in range(1, m + 1):
        theta = j / m
        wanted = 1 - Fraction(j, m)
        position = next(i for i in range(1, m + 1) if Fraction(i, m) >= wanted)
        c = weigh(theta, np.arange(m, dtype=np.float64))
        assert (c > 0).sum() == m - position + 1, (m, j)


@given(n=st.lists(st.integers(1, 20), min_size=2, max_size=9), data=st.data())
def test_exact_ties_hold_for_unequal_priors_too(n: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(1, len(n) - 1))
    theta = float(1 - Fraction(sum(n[:position]), sum(n)))
    c = weigh(theta, np.arange(len(n), dtype=np.float64), n)
    assert np.flatnonzero(c).tolist() == list(range(position - 1, len(n)))


@pytest.mark.parametrize("beside", [-1e-7, 1e-7])
def test_the_slack_makes_no_tie_of_what_is_none(beside: float) -> None:
    c = weigh(0.5 + beside, [1.0, 2.0, 3.0, 4.0])
    assert (c > 0).sum() == (3 if beside > 0 else 2)


# Properties ---------------------------------------------------------------------------------------------------------


@given(
    losses=st.lists(st.sampled_from((0.0, 0.5, 1.0, 2.0, 3.5)), min_size=1, max_size=9),
    theta=st.floats(1e-3, 1.0),
    seed=st.integers(0, 99),
)
def test_the_tail_is_the_highest_losses_shared_by_prior(losses: list[float], theta: float, seed: int) -> None:
    F, n = np.array(losses), np.random.default_rng(seed).integers(1, 9, len(losses)).astype(float)
    c, p = weigh(theta, F, n), n / n.sum()
    tail = c > 0
    assert c.sum() == pytest.approx(1.0, abs=1e-12)
    assert not (~tail).any() or F[tail].min() > F[~tail].max()
    np.testing.assert_allclose(c[tail], p[tail] / p[tail].sum(), rtol=1e-12)
    assert p[tail].sum() >= theta - 1e-9
    above = F[tail].min() < F
    assert p[above].sum() <= theta + 1e-9


@given(losses=st.lists(st.floats(0.0, 5.0), min_size=2, max_size=8), theta=st.floats(1e-3, 1.0))
def test_only_the_order_of_losses_matters(losses: list[float], theta: float) -> None:
    F = np.round(losses, 3)
    np.testing.assert_array_equal(weigh(theta, F), weigh(theta, 7.0 + 3.0 * F**3))


@given(losses=st.lists(st.floats(0.0, 5.0), min_size=2, max_size=8), seed=st.integers(0, 9))
def test_a_larger_theta_has_a_larger_tail(losses: list[float], seed: int) -> None:
    thetas = np.sort(np.random.default_rng(seed).uniform(0.01, 1.0, 5))
    sizes = [int((weigh(theta, losses) > 0).sum()) for theta in thetas]
    assert sizes == sorted(sizes)


# Edge cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1e-9, 0.3, 1.0])
def test_one_client_and_equal_losses_are_averaged(theta: float) -> None:
    assert weigh(theta, [0.0]).tolist() == [1.0]
    np.testing.assert_allclose(weigh(theta, [2.0] * 4, [1, 2, 3, 4]), [0.1, 0.2, 0.3, 0.4], rtol=1e-12)


def test_extreme_losses_and_counts() -> None:
    assert weigh(0.5, [0.0, 1e-30, 1e30]).tolist() == [0.0, 0.5, 0.5]
    assert weigh(1e-9, [0.0, 1e-30, 1e30], [1e6, 1, 1]).tolist() == [0.0, 0.0, 1.0]
    assert weigh(0.5, [-3.0, -2.0, -1.0]).tolist() == [0.0, 0.5, 0.5]

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import TERM, FedAvg

from .helpers import cohort_of, losses_and_counts

tilts = st.floats(-20.0, 20.0)


def given_losses(losses: list[float] | FloatArray, counts: list[float] | None = None) -> Cohort:
    m = len(losses)
    return cohort_of(np.eye(m), losses=losses, counts=counts, weighting="examples" if counts else "uniform")


# Reductions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("tilt", [0, 0.0, -0.0, 1e-300])
def test_tilt_zero_is_fedavg(weighting: str, tilt: float) -> None:
    F, n = losses_and_counts(6)
    cohort = cohort_of(np.eye(6), losses=F, counts=n, weighting=weighting)
    expected = FedAvg(weighting=weighting).weigh(cohort)
    np.testing.assert_allclose(TERM(tilt=tilt, weighting=weighting).weigh(cohort), expected, rtol=1e-13)


@given(losses=st.lists(st.floats(0.0, 20.0), min_size=2, max_size=6), temperature=st.floats(0.05, 20.0))
def test_fedeba_is_term_with_the_reciprocal_of_its_temperature(losses: list[float], temperature: float) -> None:
    """FedEBA: of all mixtures with the same mean loss, the one whose entropy is largest, with multiplier 1/τ."""
    F = np.array(losses)
    c = TERM(tilt=1.0 / temperature, weighting="uniform").weigh(given_losses(F))
    grown = np.exp((F - F.max()) / temperature)
    np.testing.assert_allclose(c, grown / grown.sum(), rtol=1e-9)
    moves = np.linalg.svd(np.array([np.ones(len(F)), F]))[2][np.linalg.matrix_rank(np.array([np.ones(len(F)), F])) :]
    entropy = lambda q: -np.sum(q * np.log(q))  # noqa: E731
    for move in moves:  # which change neither the sum nor the mean loss
        for q in (c + 1e-3 * c.min() * move, c - 1e-3 * c.min() * move):
            assert entropy(q) <= entropy(c) * (1.0 + 1e-12) + 1e-15


@pytest.mark.parametrize("tilt", [-1e3, -1.0, 1.0, 1e3])
@pytest.mark.parametrize("loss", [0.0, 1e-30, 1.0, 1e6, 1e30])
def test_equal_losses_leave_the_prior(tilt: float, loss: float) -> None:
    """p_k e^(tF) / Σ p_j e^(tF) = p_k, however large F: the largest loss is taken out before the prior comes in."""
    c = TERM(tilt=tilt).weigh(given_losses([loss] * 3, [10, 30, 60]))
    np.testing.assert_allclose(c, [0.1, 0.3, 0.6], rtol=1e-9)


@pytest.mark.parametrize("tilt", [1e3, 1e30, 1e300])
def test_at_infinite_tilts_it_is_the_worst_or_best_client(tilt: float) -> None:
    cohort = given_losses([1.0, 3.0, 2.0], [10, 30, 60])
    np.testing.assert_allclose(TERM(tilt=tilt).weigh(cohort), [0.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(TERM(tilt=-tilt).weigh(cohort), [1.0, 0.0, 0.0], atol=1e-12)


def test_worst_clients_with_the_same_loss_share_by_their_prior() -> None:
    c = TERM(tilt=1e3).weigh(given_losses([3.0, 1.0, 3.0], [10, 30, 60]))
    np.testing.assert_allclose(c, [1 / 7, 0.0, 6 / 7], atol=1e-12)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_two_clients_by_hand() -> None:
    # e^(2·0) : e^(2·ln 3 / 2) = 1 : 3, with priors ¼ and ¾: ¼ : 9/4
    c = TERM(tilt=2.0).weigh(given_losses([0.0, np.log(3.0) / 2.0], [1, 3]))
    assert c == pytest.approx([0.1, 0.9])


@given(F=st.floats(0.0, 10.0), G=st.floats(0.0, 10.0), tilt=tilts)
def test_two_clients_weigh_by_the_logistic_function(F: float, G: float, tilt: float) -> None:
    c = TERM(tilt=tilt).weigh(given_losses([F, G]))
    np.testing.assert_allclose(c[0], 0.5 * (1.0 + np.tanh(0.5 * tilt * (F - G))), atol=1e-12)


# Properties ---------------------------------------------------------------------------------------------------------


@given(losses=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=8), tilt=tilts, shift=st.floats(-50.0, 50.0))
def test_weights_sum_to_one_and_ignore_a_common_shift(losses: list[float], tilt: float, shift: float) -> None:
    c = TERM(tilt=tilt).weigh(given_losses(losses))
    assert c.min() >= 0.0
    assert c.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(TERM(tilt=tilt).weigh(given_losses(np.array(losses) + shift)), c, atol=1e-9)


@given(losses=st.lists(st.floats(0.0, 10.0), min_size=2, max_size=8).map(sorted), tilt=tilts)
def test_weights_rise_with_the_loss_at_a_positive_tilt(losses: list[float], tilt: float) -> None:
    c = TERM(tilt=tilt).weigh(given_losses(losses))
    assert (np.sign(tilt) * np.diff(c) >= -1e-15).all()


@given(tilt=tilts, unit=st.sampled_from((1e-6, 10.0, 1e6)))
def test_only_tilt_times_loss_matters(tilt: float, unit: float) -> None:
    F = np.array([0.5, 2.0, 1.0])
    np.testing.assert_allclose(
        TERM(tilt=tilt / unit).weigh(given_losses(unit * F)), TERM(tilt=tilt).weigh(given_losses(F)), rtol=1e-9
    )


# Edge cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tilt", [-1e30, -1.0, -1e-30, 0.0, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("losses", [[0.0, 1e-30, 1e30], [1e30, 1e30, 0.0], [0.0, 0.0, 0.0], [-5.0, 1e30, 2.0]])
def test_extreme_losses_and_tilts_give_weights(tilt: float, losses: list[float]) -> None:
    c = TERM(tilt=tilt).weigh(given_losses(losses))
    assert np.isfinite(c).all()
    assert c.min() >= 0.0
    assert c.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("tilt", [-1e308, 1e308])
def test_a_product_of_tilt_and_loss_beyond_floats_gives_weights(tilt: float) -> None:
    c = TERM(tilt=tilt).weigh(given_losses([1.0, 20.0, 20.0]))
    np.testing.assert_allclose(c, [0.0, 0.5, 0.5] if tilt > 0 else [1.0, 0.0, 0.0], atol=1e-12)


def test_one_client_has_all_the_weight() -> None:
    assert TERM(tilt=3.0).weigh(given_losses([7.0])).tolist() == [1.0]

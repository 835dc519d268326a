import numpy as np
import pytest
from hypothesis import given, strategies as st

from fairbloom.rounds import vectors
from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import AdaFed, FedMGDA
from tests.federation import record, replying, run, unpack

from .helpers import cohort_of, generic_updates, step_of

gammas = st.sampled_from((0.0, 0.5, 1.0, 3.0))


def step(
    U: FloatArray, losses: list[float] | FloatArray | None = None, **arguments: float
) -> FloatArray:
    return step_of(AdaFed(**arguments), U, losses=losses)


def random_losses(m: int) -> FloatArray:
    return np.random.default_rng(m).uniform(0.2, 3.0, m)


# Reductions ---------------------------------------------------------------------------------------


@given(U=generic_updates(min_size=2))
def test_gamma_0_is_the_affine_hulls_point_nearest_to_zero(U: FloatArray) -> None:
    """⟨d, u_k⟩ = ‖d‖² for all: so it is MGDA's point, wherever MGDA gives every client a positive
    weight."""
    d = step(U, random_losses(len(U)), gamma=0.0)
    edges = U[1:] - U[0]
    nearest = U[0] + np.linalg.lstsq(edges.T, -U[0], rcond=None)[0] @ edges
    np.testing.assert_allclose(d, nearest, rtol=1e-6, atol=1e-7 * np.linalg.norm(U))
    mgda = FedMGDA().weigh(cohort_of(U))
    if mgda.min() > 1e-3:
        np.testing.assert_allclose(d, mgda @ U, rtol=1e-5, atol=1e-5 * np.linalg.norm(U))


# Properties ---------------------------------------------------------------------------------------


@given(U=generic_updates(), gamma=gammas)
def test_each_slope_is_the_loss_power_times_the_squared_length(U: FloatArray, gamma: float) -> None:
    """⟨d, u_k⟩ = F_k^γ ‖d‖² > 0 for every k."""
    F = random_losses(len(U))
    d = step(U, F, gamma=gamma)
    np.testing.assert_allclose(
        U @ d, F**gamma * (d @ d), rtol=1e-6, atol=1e-9 * np.linalg.norm(U) ** 2
    )


# Dependent updates --------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 0.5, -1.0, -3.0, 0.0])
def test_a_multiple_of_an_earlier_update_is_left_out(factor: float) -> None:
    U = np.random.default_rng(1).normal(size=(3, 5))
    with_copy = np.vstack([U, factor * U[1]])
    c = AdaFed().weigh(cohort_of(with_copy, losses=[1.0, 2.0, 3.0, 7.0]))
    assert c[3] == 0.0
    # its loss still sets the common unit of losses, which cancels
    np.testing.assert_allclose(c @ with_copy, step(U, [1.0, 2.0, 3.0]), rtol=1e-9)


@pytest.mark.parametrize("length", [1e-10, 1.0, 1e10])
@pytest.mark.parametrize(("new", "kept"), [(0.5e-6, False), (2e-6, True), (1e-3, True)])
def test_an_update_in_the_span_up_to_1e_minus_6_is_left_out(
    new: float, kept: bool, length: float
) -> None:
    U = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6 * length, 0.8 * length, new * length]])
    assert bool(AdaFed(gamma=0.0).weigh(cohort_of(U))[2] != 0.0) is kept


def test_nearly_parallel_updates_of_a_large_model_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gram–Schmidt takes differences of inner products: they are float64 products however large the
    work."""
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", 0)
    u, v = np.random.default_rng(7).normal(size=(2, 20_000)).astype(np.float32)
    sent = {"a": u, "b": u + np.float32(0.01) * v}
    losses = {"a": {"loss-before": 1.0}, "b": {"loss-before": 1.1}}
    clients = {
        name: replying(name, lambda *_, u=u: {"w": -u}, losses[name]) for name, u in sent.items()
    }
    zeros = record({"w": np.zeros(20_000, np.float32)})
    result, _ = run(AdaFed(fraction_evaluate=0.0), clients, 1, initial_arrays=zeros)
    d = -unpack(result.arrays)["w"].astype(np.float64)
    slopes = np.array([sent[name].astype(np.float64) @ d for name in "ab"]) / (d @ d)
    np.testing.assert_allclose(slopes, [1.0, 1.1], rtol=1e-4)


# Edge cases ---------------------------------------------------------------------------------------


def test_zero_losses_take_no_step_unless_losses_count_nothing() -> None:
    U = np.random.default_rng(5).normal(size=(3, 5))
    assert step(U, [0.0] * 3, gamma=1.0).tolist() == [0.0] * 5
    np.testing.assert_allclose(
        step(U, [0.0] * 3, gamma=0.0), step(U, [1.0] * 3, gamma=0.0), rtol=1e-12
    )


def test_a_denominator_of_zero_is_no_division_by_zero() -> None:
    # u_2 has the slope F_2 along u_1 already: s_2 = F_2 − ⟨u_2, v_1⟩/‖v_1‖² = 2 − 2 = 0, so v_2 has
    # weight 0
    U = np.array([[1.0, 0.0], [2.0, 1.0]])
    d = step(U, [1.0, 2.0])
    np.testing.assert_allclose(U @ d, np.array([1.0, 2.0]) * (d @ d), rtol=1e-12)
    np.testing.assert_allclose(d, [1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("length", [1e-100, 1e-30, 1.0, 1e30, 1e100])
@pytest.mark.parametrize(
    "losses", [[1e30, 1.0, 1e-30], [0.0, 1.0, 2.0], [0.0, 1e-30, 1e30], [1e30] * 3]
)
def test_extreme_losses_and_updates_keep_the_slopes(losses: list[float], length: float) -> None:
    U = length * np.random.default_rng(6).normal(size=(3, 5))
    F = np.array(losses)
    d = step(U, losses)
    assert np.isfinite(d).all()
    slopes = F * (d @ d) / length**2
    np.testing.assert_allclose(
        U @ d / length**2, slopes, rtol=1e-6, atol=1e-9 * np.linalg.norm(d) / length
    )

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedAvg, FedAvgN, FedMGDA, FedMGDAPlus
from fairbloom.strategies.simplex import min_norm_weights

from .helpers import cohort_of, edgy_updates, generic_updates, losses_and_counts
from .reference import shortest as by_enumeration

weightings = st.sampled_from(("uniform", "examples"))
epsilons = st.sampled_from((0.0, 1e-12, 1e-3, 0.05, 0.3, 1.0, 2.0))


def unit(U: FloatArray) -> FloatArray:
    norms = np.linalg.norm(U, axis=1, keepdims=True)
    return np.divide(U, norms, out=np.zeros_like(U), where=norms > 0)


# Reductions ---------------------------------------------------------------------------------------------------------


@given(U=edgy_updates(), weighting=weightings)
def test_fedmgda_with_epsilon_zero_is_fedavg(U: FloatArray, weighting: str) -> None:
    cohort = cohort_of(U, counts=1 + np.arange(len(U)), weighting=weighting)
    c = FedMGDA(epsilon=0.0, weighting=weighting).weigh(cohort)
    np.testing.assert_array_equal(c, FedAvg(weighting=weighting).weigh(cohort))


@given(U=edgy_updates(), weighting=weightings)
def test_fedmgdaplus_with_epsilon_zero_is_fedavgn(U: FloatArray, weighting: str) -> None:
    cohort = cohort_of(U, counts=1 + np.arange(len(U)), weighting=weighting)
    c = FedMGDAPlus(epsilon=0.0, server_lr=0.3, weighting=weighting).weigh(cohort)
    np.testing.assert_allclose(c, FedAvgN(server_lr=0.3, weighting=weighting).weigh(cohort), rtol=1e-12)


@given(U=generic_updates(), epsilon=epsilons)
def test_fedmgdaplus_of_unit_updates_is_fedmgda(U: FloatArray, epsilon: float) -> None:
    cohort = cohort_of(unit(U))
    step = FedMGDA(epsilon=epsilon).weigh(cohort) @ unit(U)
    np.testing.assert_allclose(FedMGDAPlus(epsilon=epsilon).weigh(cohort) @ unit(U), step, atol=1e-6)


@pytest.mark.parametrize("method", [FedAvgN, FedMGDA, FedMGDAPlus])
def test_server_lr_multiplies_the_step(method: type[FedAvgN]) -> None:
    cohort = cohort_of(np.random.default_rng(0).normal(size=(3, 5)))
    np.testing.assert_allclose(method(server_lr=2.5).weigh(cohort), 2.5 * method().weigh(cohort), rtol=1e-15)


# Closed forms and optimality ----------------------------------------------------------------------------------------


@given(U=generic_updates(min_size=2))
def test_two_clients_have_a_closed_form(U: FloatArray) -> None:
    u, v = U[:2]
    first = np.clip((v - u) @ v / ((u - v) @ (u - v)), 0.0, 1.0)
    np.testing.assert_allclose(FedMGDA().weigh(cohort_of(U[:2])), [first, 1.0 - first], atol=1e-7)


@given(U=edgy_updates())
def test_mgda_weights_are_the_min_norm_point(U: FloatArray) -> None:
    """KKT of min λᵀGλ on the simplex: Gλ ≥ λᵀGλ, so that d serves every client."""
    G = U @ U.T
    lam = FedMGDA().weigh(cohort_of(U))
    assert lam.min() >= 0.0
    assert lam.sum() == pytest.approx(1.0, abs=1e-12)
    assert (G @ lam).min() >= lam @ G @ lam - 1e-6 * np.trace(G)


@given(U=generic_updates(min_size=2), epsilon=epsilons, weighting=weightings)
def test_boxed_weights_satisfy_the_kkt_conditions(U: FloatArray, epsilon: float, weighting: str) -> None:
    """No weight that may still fall has a larger derivative than one that may still rise."""
    cohort = cohort_of(U, counts=1 + np.arange(len(U)), weighting=weighting)
    lam, p, slope = FedMGDA(epsilon=epsilon, weighting=weighting).weigh(cohort), cohort.prior, cohort.gram
    lower, upper = np.maximum(p - epsilon, 0.0), np.minimum(p + epsilon, 1.0)
    assert (lower - 1e-9 <= lam).all()
    assert (lam <= upper + 1e-9).all()
    assert lam.sum() == pytest.approx(1.0, abs=1e-12)
    slope = cohort.gram @ lam / (np.trace(cohort.gram) / len(U))
    may_fall, may_rise = slope[lam > lower + 1e-5], slope[lam < upper - 1e-5]
    if may_fall.size and may_rise.size:
        assert may_fall.max() <= may_rise.min() + 1e-4


@given(U=edgy_updates(), epsilon=epsilons, weighting=weightings)
def test_the_objective_is_the_minimum_to_1e_10(U: FloatArray, epsilon: float, weighting: str) -> None:
    cohort = cohort_of(U, counts=1 + np.arange(len(U)), weighting=weighting)
    lam = FedMGDA(epsilon=epsilon, weighting=weighting).weigh(cohort)
    scale = np.abs(U).max() or 1.0
    best = by_enumeration(U / scale, cohort.prior, epsilon) * scale
    found, least = np.sum((lam @ U) ** 2), best @ best
    assert found <= least * (1.0 + 1e-10) + 1e-12 * np.trace(cohort.gram) / len(U)


@pytest.mark.parametrize("ratio", [1.0, 10.0, 1e2, 1e3, 1e4, 1e6])
def test_the_objective_is_minimal_to_1e_10_with_a_large_client(ratio: float) -> None:
    for seed in range(20):
        U = np.random.default_rng(seed).normal(size=(4, 8))
        U[2] *= ratio
        lam = FedMGDA().weigh(cohort_of(U))
        best = by_enumeration(U, np.full(4, 0.25), 1.0)
        assert np.sum((lam @ U) ** 2) <= best @ best * (1.0 + 1e-10)


@pytest.mark.parametrize("m", [1, 2, 10, 100])
def test_many_clients_have_a_duality_gap_of_1e_10(m: int) -> None:
    """On the simplex λᵀGλ − min Gλ bounds half the distance to the least objective."""
    U = np.random.default_rng(m).normal(size=(m, 200)) + 0.3
    G = U @ U.T
    lam = min_norm_weights(G, np.full(m, 1.0 / m), 1.0)
    assert lam @ G @ lam - (G @ lam).min() <= 1e-10 * (lam @ G @ lam)


# Properties ---------------------------------------------------------------------------------------------------------


@given(U=edgy_updates(), server_lr=st.floats(1e-3, 10.0))
def test_normalised_steps_are_no_longer_than_server_lr(U: FloatArray, server_lr: float) -> None:
    for method in (FedAvgN(server_lr=server_lr), FedMGDAPlus(server_lr=server_lr)):
        assert np.linalg.norm(method.weigh(cohort_of(U)) @ U) <= server_lr * (1.0 + 1e-6)


@given(U=edgy_updates())
def test_zero_updates_take_no_part_in_normalised_methods(U: FloatArray) -> None:
    with_zeros = np.insert(U, [0, len(U)], 0.0, axis=0)
    F, n = losses_and_counts(len(U))
    for weighting in ("uniform", "examples"):
        for method in (FedAvgN, FedMGDAPlus):
            c = method(weighting=weighting).weigh(cohort_of(U, losses=F, counts=n, weighting=weighting))
            more = cohort_of(with_zeros, counts=[7.0, *n, 9.0], weighting=weighting)
            np.testing.assert_allclose(method(weighting=weighting).weigh(more) @ with_zeros, c @ U, atol=1e-6)
            assert method(weighting=weighting).weigh(more)[[0, -1]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("method", [FedAvgN, FedMGDAPlus])
@given(U=generic_updates(), factor=st.sampled_from((1e-30, 1e-3, 3.0, 1e3, 1e30)))
def test_multiplying_one_update_by_a_number_changes_nothing(
    method: type[FedAvgN], U: FloatArray, factor: float
) -> None:
    scaled = U * np.where(np.arange(len(U)) == 0, factor, 1.0)[:, None]
    step = method().weigh(cohort_of(U)) @ U
    np.testing.assert_allclose(method().weigh(cohort_of(scaled)) @ scaled, step, atol=1e-6)


@given(U=generic_updates(), factor=st.sampled_from((1e-30, 1e-3, 1e3, 1e30)))
def test_fedmgda_weights_do_not_depend_on_the_updates_unit(U: FloatArray, factor: float) -> None:
    weights = FedMGDA().weigh(cohort_of(U))
    np.testing.assert_allclose(FedMGDA().weigh(cohort_of(factor * U)), weights, atol=1e-6)


@pytest.mark.parametrize("method", [FedMGDA, FedMGDAPlus])
@given(U=edgy_updates())
def test_no_participant_is_stepped_against(method: type[FedMGDA], U: FloatArray) -> None:
    products = U @ (method().weigh(cohort_of(U)) @ U)
    assert (products >= -1e-6 * np.maximum(np.linalg.norm(U, axis=1), 1.0) * np.linalg.norm(U, axis=1).max()).all()


# Decay --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvgN, FedMGDA, FedMGDAPlus])
@pytest.mark.parametrize(
    ("round", "num_rounds", "decay", "left"),
    [
        (1, 1000, 0.1, 1.0),
        (99, 1000, 0.1, 1.0),
        (100, 1000, 0.1, 0.1**0.1),
        (299, 1000, 0.1, 0.1**0.2),
        (1000, 1000, 0.1, 0.1),
        (100, 50, 0.5, 0.25),
        (7, 1000, 0.0, 1.0),
        (1000, 1000, 0.0, 1.0),
        (1000, 1000, 1.0, 1.0),
        (1000, None, 0.0, 1.0),
    ],
)
def test_the_step_size_decays_every_hundred_rounds(
    method: type[FedAvgN], round: int, num_rounds: int | None, decay: float, left: float
) -> None:
    U = np.random.default_rng(1).normal(size=(3, 4))
    c = method(server_lr=3.0, decay=decay).weigh(cohort_of(U, round=round, num_rounds=num_rounds))
    np.testing.assert_allclose(c, 3.0 * left * method().weigh(cohort_of(U)), rtol=1e-12)


# By hand ------------------------------------------------------------------------------------------------------------


def test_orthogonal_updates_by_hand() -> None:
    U = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert FedMGDA().weigh(cohort_of(U)) == pytest.approx([0.8, 0.2], abs=1e-9)
    assert FedMGDA(epsilon=0.1).weigh(cohort_of(U)) == pytest.approx([0.6, 0.4], abs=1e-9)
    assert FedMGDAPlus().weigh(cohort_of(U)) == pytest.approx([0.5, 0.25], abs=1e-9)
    assert FedAvgN().weigh(cohort_of(U)) == pytest.approx([0.5, 0.25])


def test_opposite_updates_cancel() -> None:
    U = np.array([[1.0, 0.0], [-3.0, 0.0]])
    assert FedMGDA().weigh(cohort_of(U)) == pytest.approx([0.75, 0.25], abs=1e-9)
    assert FedMGDAPlus().weigh(cohort_of(U)) @ U == pytest.approx([0.0, 0.0], abs=1e-9)


def test_a_dominated_update_is_left_out() -> None:
    U = np.array([[1.0, 0.0], [2.0, 1.0]])
    assert FedMGDA().weigh(cohort_of(U)) == pytest.approx([1.0, 0.0], abs=1e-9)


def test_a_zero_update_stops_fedmgda_alone() -> None:
    U = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert FedMGDA().weigh(cohort_of(U)) @ U == pytest.approx([0.0, 0.0], abs=1e-6)
    assert FedMGDAPlus().weigh(cohort_of(U)) @ U == pytest.approx([0.6, 0.8])

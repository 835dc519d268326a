from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedAvgN, FedMGDA, FedMGDAPlus

from .helpers import cohort_of, edgy_updates
from .reference import shortest as by_enumeration

weightings = st.sampled_from(("uniform", "examples"))
epsilons = st.sampled_from((0.0, 1e-12, 1e-3, 0.05, 0.3, 1.0, 2.0))


# Closed forms and optimality ----------------------------------------------------------------------------------------


@given(U=edgy_updates(), epsilon=epsilons, weighting=weightings)
def test_the_objective_is_the_minimum_to_1e_10(U: FloatArray, epsilon: float, weighting: str) -> None:
    cohort = cohort_of(U, counts=1 + np.arange(len(U)), weighting=weighting)
    lam = FedMGDA(epsilon=epsilon, weighting=weighting).weigh(cohort)
    scale = np.abs(U).max() or 1.0
    best = by_enumeration(U / scale, cohort.prior, epsilon) * scale
    found, least = np.sum((lam @ U) ** 2), best @ best
    assert found <= least * (1.0 + 1e-10) + 1e-12 * np.trace(cohort.gram) / len(U)


def test_the_objective_is_minimal_to_1e_10_with_a_large_client() -> None:
    for ratio, seed in product((1.0, 10.0, 1e2, 1e3, 1e4, 1e6), range(5)):
        U = np.random.default_rng(seed).normal(size=(4, 8))
        U[2] *= ratio
        lam = FedMGDA().weigh(cohort_of(U))
        best = by_enumeration(U, np.full(4, 0.25), 1.0)
        assert np.sum((lam @ U) ** 2) <= best @ best * (1.0 + 1e-10)


# Decay --------------------------------------------------------------------------------------------------------------


def test_the_step_size_decays_every_hundred_rounds() -> None:
    U = np.random.default_rng(1).normal(size=(3, 4))
    for method in (FedAvgN, FedMGDA, FedMGDAPlus):
        for round, num_rounds, decay, left in (
            (99, 1000, 0.1, 1.0),
            (100, 1000, 0.1, 0.1**0.1),
            (299, 1000, 0.1, 0.1**0.2),
            (1000, 1000, 0.1, 0.1),
            (100, 50, 0.5, 0.25),
            (1000, 1000, 1.0, 1.0),
            (1000, None, 0.0, 1.0),
        ):
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

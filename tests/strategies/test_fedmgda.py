import numpy as np
import pytest

from fairbloom.strategies import FedAvgN, FedMGDA, FedMGDAPlus

from .helpers import cohort_of

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


def test_a_zero_update_stops_fedmgda_alone() -> None:
    U = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert FedMGDA().weigh(cohort_of(U)) @ U == pytest.approx([0.0, 0.0], abs=1e-6)
    assert FedMGDAPlus().weigh(cohort_of(U)) @ U == pytest.approx([0.6, 0.8])

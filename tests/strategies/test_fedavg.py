import numpy as np
import pytest
from hypothesis import given

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedAvg

from .helpers import cohort_of, edgy_updates, losses_and_counts, told


@given(U=edgy_updates())
def test_uniform_weighting_is_the_unweighted_mean(U: FloatArray) -> None:
    _, n = losses_and_counts(len(U))
    c = FedAvg(weighting="uniform").weigh(cohort_of(U, counts=n, weighting="uniform"))
    np.testing.assert_allclose(c, 1.0 / len(U), rtol=1e-15)


@given(U=edgy_updates())
def test_coefficients_are_shares_of_examples_for_any_updates(U: FloatArray) -> None:
    F, n = losses_and_counts(len(U))
    c = FedAvg().weigh(cohort_of(U, losses=F, counts=n, weighting="examples"))
    np.testing.assert_allclose(c, n / n.sum(), rtol=1e-15)


def test_three_clients_by_hand() -> None:
    c = FedAvg().weigh(cohort_of(np.eye(3), counts=[10, 30, 60], weighting="examples"))
    assert c == pytest.approx([0.1, 0.3, 0.6])


def test_no_metric_is_needed() -> None:
    assert FedAvg.needs == frozenset()
    assert told(FedAvg(), 1) == {}

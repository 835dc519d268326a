import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedAvg, PropFair

from .helpers import cohort_of, edgy_updates, losses_and_counts, told


@given(U=edgy_updates(), baseline=st.floats(1e-3, 1e3), weighting=st.sampled_from(("examples", "uniform")))
def test_the_server_averages_as_fedavg_does(U: FloatArray, baseline: float, weighting: str) -> None:
    F, n = losses_and_counts(len(U))
    cohort = cohort_of(U, losses=F, counts=n, weighting=weighting)
    c = PropFair(baseline=baseline, weighting=weighting).weigh(cohort)
    np.testing.assert_array_equal(c, FedAvg(weighting=weighting).weigh(cohort))


def test_the_clients_are_told_the_transform_with_its_numbers() -> None:
    expected = {"loss-transform": "propfair", "propfair-baseline": 5.0, "propfair-epsilon": 0.2}
    assert told(PropFair(baseline=5), 1) == told(PropFair(baseline=5, epsilon=0.2), 99) == expected
    assert told(PropFair(baseline=3.0, epsilon=1e-3, proximal_mu=0.5), 1) == {
        "loss-transform": "propfair",
        "propfair-baseline": 3.0,
        "propfair-epsilon": 1e-3,
        "proximal-mu": 0.5,
    }


def test_no_metric_is_needed_and_no_transform_told_to_others() -> None:
    assert PropFair.needs == frozenset()
    assert "loss-transform" not in told(FedAvg(), 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_baseline_and_epsilon_are_above_zero(value: float) -> None:
    with pytest.raises(ValueError, match=r"baseline = .*: allowed is float above 0"):
        PropFair(baseline=value)
    with pytest.raises(ValueError, match=r"epsilon = .*: allowed is float above 0"):
        PropFair(baseline=1.0, epsilon=value)

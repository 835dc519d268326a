import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedAvg, FedProx

from .helpers import cohort_of, edgy_updates, losses_and_counts, told


def test_mu_zero_tells_the_clients_what_fedavg_tells_them() -> None:
    assert told(FedProx(mu=0.0), 1) == told(FedAvg(), 1) == {}


@given(U=edgy_updates(), mu=st.floats(0.0, 10.0))
def test_the_server_averages_as_fedavg_does_for_every_mu(U: FloatArray, mu: float) -> None:
    F, n = losses_and_counts(len(U))
    cohort = cohort_of(U, losses=F, counts=n, weighting="examples")
    np.testing.assert_array_equal(FedProx(mu=mu).weigh(cohort), FedAvg().weigh(cohort))


@given(mu=st.floats(1e-30, 1e30))
def test_mu_is_the_proximal_term_of_the_clients(mu: float) -> None:
    assert told(FedProx(mu=mu), 1) == told(FedAvg(proximal_mu=mu), 1) == {"proximal-mu": mu}


def test_the_proximal_term_is_given_by_mu_alone() -> None:
    with pytest.raises(ValueError, match=r"FedProx sets proximal_mu by its own parameter, got 0\.5"):
        FedProx(mu=0.1, proximal_mu=0.5)

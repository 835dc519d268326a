"""FedDyn: clients that keep the linear term of their loss, and a server that keeps the sum of all updates."""

import numpy as np

from fairbloom.strategies import FedAvg, FedDyn
from tests.federation import QUIET, descend, follow, keeping, minimiser_of_means

ALPHA = 0.3


# Reductions and closed forms ----------------------------------------------------------------------------------------


def test_its_first_full_round_is_twice_fedavgs_step() -> None:
    """The clients' loss is regularised in the first round already, so FedAvg's clients get the same proximal term."""
    ours = follow(FedDyn(alpha=ALPHA, **QUIET), keeping(4), 1)
    theirs = follow(FedAvg(weighting="uniform", proximal_mu=ALPHA, **QUIET), keeping(4), 1)
    np.testing.assert_allclose(ours.models[0] - ours.models[1], 2.0 * (theirs.models[0] - theirs.models[1]), rtol=1e-13)
    assert set(ours.rounds[0].coefficients.values()) == {0.5}


def test_it_rests_at_the_mean_minimum_where_fedavg_does_not() -> None:
    """Of the mean over clients, whatever their examples."""
    best = minimiser_of_means(keeping(4).values(), by_examples=False)
    for options in ({"fraction_train": 0.5}, {"proximal_mu": 0.5}):
        path = descend(FedDyn(alpha=1.0, **options, **QUIET), keeping(4).values(), 200)
        np.testing.assert_allclose(path[-1], best, atol=1e-8)
    plain = descend(FedAvg(weighting="uniform", **QUIET), keeping(4).values(), 60)
    assert np.abs(plain[-1] - best).max() > 0.03

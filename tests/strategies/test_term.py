from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import TERM

from .helpers import cohort_of


def given_losses(losses: list[float] | FloatArray, counts: list[float] | None = None) -> Cohort:
    m = len(losses)
    return cohort_of(np.eye(m), losses=losses, counts=counts, weighting="examples" if counts else "uniform")


# Reductions ---------------------------------------------------------------------------------------------------------


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


def test_equal_losses_leave_the_prior() -> None:
    """p_k e^(tF) / Σ p_j e^(tF) = p_k, however large F: the largest loss is taken out before the prior comes in."""
    for tilt, loss in product((-1e3, -1.0, 1e-300, 1.0, 1e3), (0.0, 1e-30, 1.0, 1e6, 1e30)):
        c = TERM(tilt=tilt).weigh(given_losses([loss] * 3, [10, 30, 60]))
        np.testing.assert_allclose(c, [0.1, 0.3, 0.6], rtol=1e-9)


def test_at_infinite_tilts_it_is_the_worst_or_best_clients() -> None:
    """Worst clients with the same loss share by their prior."""
    cohort = given_losses([1.0, 3.0, 3.0], [10, 20, 60])
    for tilt in (1e3, 1e30, 1e308):
        np.testing.assert_allclose(TERM(tilt=tilt).weigh(cohort), [0.0, 0.25, 0.75], atol=1e-12)
        np.testing.assert_allclose(TERM(tilt=-tilt).weigh(cohort), [1.0, 0.0, 0.0], atol=1e-12)

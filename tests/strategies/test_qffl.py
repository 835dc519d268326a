import math
from itertools import product

import numpy as np

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import QFedAvg

from .helpers import cohort_of

# Edge cases ---------------------------------------------------------------------------------------------------------


def in_logarithms(F: FloatArray, squared_norms: FloatArray, q: float, L: float) -> FloatArray:
    """The paper's c without an overflow, from logarithms in Python floats."""
    F = np.maximum(F, 1e-10)
    log_weight = [math.log(L) + q * math.log(f) for f in F]
    log_h = [
        value
        for f, s, w in zip(F, squared_norms, log_weight, strict=True)
        for value in (
            w,
            math.log(q) + (q - 1) * math.log(f) + 2 * math.log(L) + math.log(s) if q * s > 0 else -math.inf,
        )
    ]
    return np.exp(np.array(log_weight) - np.logaddexp.reduce(log_h))


def test_extreme_losses_and_updates_follow_the_formula() -> None:
    losses = ([0.0, 1.0], [0.0, 0.0], [1e-30, 1e30], [1e30, 1e30], [1e-11, 1e-12], [-1.0, 2.0])
    for q, F, length in product((0.0, 0.01, 0.5, 1.0, 15.0), losses, (0.0, 1e-30, 1.0, 1e30)):
        U = length * np.array([[1.0, 0.0], [0.6, 0.8]])
        c = QFedAvg(q=q, lipschitz=10.0).weigh(cohort_of(U, losses=F))
        expected = in_logarithms(np.array(F), np.sum(U**2, axis=1), q, 10.0)
        np.testing.assert_allclose(c, expected, rtol=1e-9, atol=1e-300)


def test_the_floor_is_reached_at_exactly_1e_minus_10() -> None:
    U = np.eye(2)
    at_zero = QFedAvg(q=0.5, lipschitz=1.0).weigh(cohort_of(U, losses=[0.0, 1.0]))
    at_floor = QFedAvg(q=0.5, lipschitz=1.0).weigh(cohort_of(U, losses=[1e-10, 1.0]))
    np.testing.assert_array_equal(at_zero, at_floor)

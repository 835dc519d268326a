from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import SemiVRed, VRed
from tests.federation import MemoryGrid, initial_model, metrics, quadratics, record

from .helpers import cohort_of

cohorts = st.tuples(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=8), st.integers(0, 99))


def weigh(
    method: type[VRed], beta: float, losses: list[float] | FloatArray, counts: list[float] | FloatArray | None = None
) -> FloatArray:
    weighting = "uniform" if counts is None else "examples"
    cohort = cohort_of(np.eye(len(losses)), losses=losses, counts=counts, weighting=weighting)
    return method(beta=beta, weighting=weighting).weigh(cohort)


def counts_of(m: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).integers(1, 50, m).astype(np.float64)


# Closed forms -------------------------------------------------------------------------------------------------------


@given(given=cohorts, beta=st.floats(0.0, 2.0), method=st.sampled_from((VRed, SemiVRed)))
def test_weights_are_the_gradient_of_mean_plus_variance(
    method: type[VRed], given: tuple[list[float], int], beta: float
) -> None:
    losses, seed = given
    n = counts_of(len(losses), seed)
    F, p, h = np.array(losses), n / n.sum(), 1e-5

    def penalised(x: FloatArray) -> float:
        deviation = x - p @ x
        kept = deviation if method is VRed else np.maximum(deviation, 0.0)
        return float(p @ x + beta * p @ kept**2)

    numeric = [(penalised(F + h * e) - penalised(F - h * e)) / (2 * h) for e in np.eye(len(F))]
    np.testing.assert_allclose(weigh(method, beta, F, n), numeric, atol=1e-4)


# Negative weights ---------------------------------------------------------------------------------------------------


def test_negative_weights_are_used_and_counted() -> None:
    faults = {(f"site-{k}", 1): metrics({"loss-before": 0.0 if k < 3 else 4.0}) for k in range(4)}
    for method, beta, negative in ((VRed, 5.0, 3), (SemiVRed, 5.0, 3), (VRed, 0.0, 0)):
        finished: list[Any] = []
        strategy, grid = method(beta=beta, weighting="uniform"), MemoryGrid(quadratics(4), faults=faults)
        result = strategy.start(grid, record(initial_model()), num_rounds=1, on_round=finished.append)
        assert finished[0].metrics["negative-weights"] == negative
        assert result.train_metrics_clientapp[1]["negative-weights"] == negative
        assert sum(c < 0 for c in finished[0].coefficients.values()) == negative
        assert sum(finished[0].coefficients.values()) == pytest.approx(1.0)

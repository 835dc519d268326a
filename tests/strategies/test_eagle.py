from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import EAGLE
from tests.federation import BUFFERS, MemoryGrid, initial_model, metrics, quadratics, record

from .helpers import cohort_of

cohorts = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)), min_size=1, max_size=8)


def weigh(
    lam: float,
    losses: list[float] | FloatArray,
    baselines: list[float] | FloatArray,
    counts: list[float] | FloatArray | None = None,
) -> FloatArray:
    weighting = "uniform" if counts is None else "examples"
    cohort = cohort_of(np.eye(len(losses)), losses=losses, baselines=baselines, counts=counts, weighting=weighting)
    return EAGLE(lam=lam, weighting=weighting).weigh(cohort)


def columns(given: list[tuple[float, float]]) -> tuple[FloatArray, FloatArray]:
    losses, baselines = np.array(given).T
    return losses, baselines


# Closed forms -------------------------------------------------------------------------------------------------------


@given(given=cohorts, lam=st.floats(0.0, 2.0), seed=st.integers(0, 99))
def test_weights_are_the_gradient_of_mean_loss_and_gap_variance(
    given: list[tuple[float, float]], lam: float, seed: int
) -> None:
    F, L = columns(given)
    n = np.random.default_rng(seed).integers(1, 50, len(F)).astype(np.float64)
    p, h = n / n.sum(), 1e-5

    def penalised(x: FloatArray) -> float:
        gaps = x - L
        return float(p @ x + lam * p @ (gaps - p @ gaps) ** 2)

    numeric = [(penalised(F + h * e) - penalised(F - h * e)) / (2 * h) for e in np.eye(len(F))]
    np.testing.assert_allclose(weigh(lam, F, L, n), numeric, atol=1e-4)


# On the wire --------------------------------------------------------------------------------------------------------


def test_negative_weights_are_used_and_counted() -> None:
    finished: list[Any] = []
    faults = {(f"site-{k}", 1): metrics({"loss-before": 4.0, "loss-baseline": 4.0 if k else 0.0}) for k in range(4)}
    result = EAGLE(lam=5.0, buffers=BUFFERS).start(
        MemoryGrid(quadratics(4), faults=faults), record(initial_model()), num_rounds=1, on_round=finished.append
    )
    assert EAGLE.reports == ("negative-weights",)
    assert finished[0].metrics["negative-weights"] == 3.0
    assert result.train_metrics_clientapp[1]["negative-weights"] == 3.0
    assert finished[0].coefficients["site-1"] == pytest.approx(0.25 * (1.0 - 10.0))

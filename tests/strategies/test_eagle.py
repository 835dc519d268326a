from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import EAGLE, VRed

from .helpers import BUFFERS, MemoryGrid, cohort_of, initial_model, losses_and_counts, metrics, quadratics, record, told

cohorts = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)), min_size=1, max_size=8)
weightings = pytest.mark.parametrize("weighting", ["uniform", "examples"])


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


# Reductions ---------------------------------------------------------------------------------------------------------


@weightings
@given(m=st.integers(1, 8), lam=st.floats(0.0, 10.0), constant=st.floats(-3.0, 3.0))
def test_equal_baselines_are_vred_whatever_they_are(weighting: str, m: int, lam: float, constant: float) -> None:
    F, n = losses_and_counts(m)
    cohort = cohort_of(np.eye(m), losses=F, counts=n, baselines=np.full(m, constant), weighting=weighting)
    expected = VRed(beta=lam, weighting=weighting).weigh(cohort)
    np.testing.assert_allclose(EAGLE(lam=lam, weighting=weighting).weigh(cohort), expected, atol=1e-12 * (1.0 + lam))


@given(given=cohorts, lam=st.floats(0.0, 10.0), gap=st.floats(-2.0, 2.0))
def test_equal_gaps_leave_the_prior_however_unlike_the_losses(
    given: list[tuple[float, float]], lam: float, gap: float
) -> None:
    F, _ = columns(given)
    np.testing.assert_allclose(weigh(lam, F, F - gap), 1.0 / len(F), atol=1e-12 * (1.0 + lam))


# Closed forms -------------------------------------------------------------------------------------------------------


def test_three_clients_by_hand() -> None:
    # r = (3 − 1, 1 − 0.5, 2 − 2) = (2, 0.5, 0); p = (0.1, 0.2, 0.7): r̄ = 0.3; 1 + 2·0.5·(r − r̄) = (2.7, 1.2, 0.7)
    assert weigh(0.5, [3.0, 1.0, 2.0], [1.0, 0.5, 2.0], [1, 2, 7]) == pytest.approx([0.27, 0.24, 0.49])


def test_a_client_better_off_together_than_alone_counts_less() -> None:
    """A negative gap is a gap: taken by its size, the first client would count as the second does."""
    c = weigh(0.5, [1.0, 3.0, 2.0], [2.0, 2.0, 2.0])
    assert c == pytest.approx([0.0, 2.0 / 3.0, 1.0 / 3.0])


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


# Properties ---------------------------------------------------------------------------------------------------------


@given(given=cohorts, lam=st.floats(0.0, 5.0), shift=st.floats(-3.0, 3.0))
def test_a_constant_on_all_baselines_changes_nothing(
    given: list[tuple[float, float]], lam: float, shift: float
) -> None:
    F, L = columns(given)
    np.testing.assert_allclose(weigh(lam, F, L + shift), weigh(lam, F, L), atol=1e-9)


@given(given=cohorts, seed=st.integers(0, 99))
def test_the_order_of_clients_decides_nothing(given: list[tuple[float, float]], seed: int) -> None:
    F, L = columns(given)
    order = np.random.default_rng(seed).permutation(len(F))
    np.testing.assert_allclose(weigh(0.7, F[order], L[order]), weigh(0.7, F, L)[order], atol=1e-12)


@given(given=cohorts, lam=st.floats(0.0, 3.0))
def test_a_client_split_into_halves_counts_as_before_by_examples(given: list[tuple[float, float]], lam: float) -> None:
    F, L = columns(given)
    n = 2.0 * (1.0 + np.arange(len(F)))
    halves = np.append(n, n[0] / 2.0)
    halves[0] /= 2.0
    c, split = weigh(lam, F, L, n), weigh(lam, np.append(F, F[0]), np.append(L, L[0]), halves)
    np.testing.assert_allclose(split[:-1], np.append(c[0] / 2.0, c[1:]), atol=1e-9)
    assert split[-1] == pytest.approx(split[0])


# On the wire --------------------------------------------------------------------------------------------------------


def test_clients_train_alone_and_report_both_losses() -> None:
    assert told(EAGLE(), 3) == {"baseline-patience": 5, "baseline-tolerance": 1e-4, "baseline-epochs": 200}
    assert EAGLE.needs == {"loss-before", "loss-baseline"}
    assert EAGLE().weighting == "uniform"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), [1.0]])
def test_a_reply_without_a_baseline_is_refused_by_name(value: Any) -> None:
    finished: list[Any] = []
    grid = MemoryGrid(quadratics(4), faults={("site-1", 1): metrics({"loss-baseline": value})})
    EAGLE(buffers=BUFFERS).start(grid, record(initial_model()), num_rounds=1, on_round=finished.append)
    assert list(finished[0].refused) == ["site-1"]
    assert "metric 'loss-baseline' must be a finite number" in finished[0].refused["site-1"]
    assert set(finished[0].coefficients) == {"site-0", "site-2", "site-3"}


@pytest.mark.parametrize("lie", [-1e6, 1e6])
def test_a_baseline_out_of_proportion_is_refused_as_a_loss_is(lie: float) -> None:
    def run(**options: Any) -> Any:
        finished: list[Any] = []
        grid = MemoryGrid(quadratics(4), faults={("site-1", 1): metrics({"loss-baseline": lie})})
        EAGLE(lam=0.001, buffers=BUFFERS, **options).start(
            grid, record(initial_model()), num_rounds=1, on_round=finished.append
        )
        return finished[0]

    refused = run()
    assert list(refused.refused) == ["site-1"]
    assert "metric 'loss-baseline'" in refused.refused["site-1"]
    assert "(loss_limit)" in refused.refused["site-1"]
    assert run(loss_limit=float("inf"), unused_rounds=0).refused == {}


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


# Edge cases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("losses", "baselines"), [([0.0], [5.0]), ([1e30], [0.0]), ([1e30, 0.0], [0.0, 1e-30])])
def test_extreme_losses_give_the_formulas_weights(losses: list[float], baselines: list[float]) -> None:
    c = weigh(1.0, losses, baselines)
    assert np.isfinite(c).all()
    scale = max(1.0, np.abs(c).max())
    assert c.sum() / scale == pytest.approx(1.0 / scale, abs=1e-12)

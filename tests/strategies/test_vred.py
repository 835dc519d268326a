from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import SemiVRed, VRed

from .helpers import MemoryGrid, cohort_of, initial_model, metrics, quadratics, record

both = pytest.mark.parametrize("method", [VRed, SemiVRed])
cohorts = st.tuples(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=8), st.integers(0, 99))


def weigh(
    method: type[VRed], beta: float, losses: list[float] | FloatArray, counts: list[float] | FloatArray | None = None
) -> FloatArray:
    weighting = "uniform" if counts is None else "examples"
    cohort = cohort_of(np.eye(len(losses)), losses=losses, counts=counts, weighting=weighting)
    return method(beta=beta, weighting=weighting).weigh(cohort)


def counts_of(m: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).integers(1, 50, m).astype(np.float64)


# Reductions ---------------------------------------------------------------------------------------------------------


@both
@given(beta=st.floats(0.0, 10.0), loss=st.floats(0.0, 100.0))
def test_equal_losses_leave_the_prior(method: type[VRed], beta: float, loss: float) -> None:
    np.testing.assert_allclose(weigh(method, beta, [loss] * 3, [1, 2, 7]), [0.1, 0.2, 0.7], rtol=1e-9)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_three_clients_by_hand() -> None:
    # p = (0.1, 0.2, 0.7), f̄ = 0.3 + 0.2 + 1.4 = 1.9; deviations (1.1, -0.9, 0.1); (…)_+ = (1.1, 0, 0.1), s = 0.18
    c = weigh(VRed, 0.5, [3.0, 1.0, 2.0], [1, 2, 7])
    assert c == pytest.approx([0.1 * 2.1, 0.2 * 0.1, 0.7 * 1.1])
    c = weigh(SemiVRed, 0.5, [3.0, 1.0, 2.0], [1, 2, 7])
    assert c == pytest.approx([0.1 * 1.92, 0.2 * 0.82, 0.7 * 0.92])


@both
@given(given=cohorts, beta=st.floats(0.0, 2.0))
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


# Properties ---------------------------------------------------------------------------------------------------------


@both
@given(given=cohorts, beta=st.floats(0.0, 100.0))
def test_weights_sum_to_one_also_where_some_are_negative(
    method: type[VRed], given: tuple[list[float], int], beta: float
) -> None:
    losses, seed = given
    assert weigh(method, beta, losses, counts_of(len(losses), seed)).sum() == pytest.approx(1.0, abs=1e-9)


@both
@given(given=cohorts, beta=st.floats(0.0, 5.0), shift=st.floats(-3.0, 3.0))
def test_a_common_shift_changes_nothing(
    method: type[VRed], given: tuple[list[float], int], beta: float, shift: float
) -> None:
    F = np.array(given[0])
    c = weigh(method, beta, F)
    np.testing.assert_allclose(weigh(method, beta, F + shift), c, atol=1e-9)
    np.testing.assert_allclose(weigh(method, beta / 8.0, 8.0 * F), c, atol=1e-9)


@given(given=cohorts, beta=st.floats(0.0, 5.0))
def test_semivred_treats_clients_below_the_mean_alike(given: tuple[list[float], int], beta: float) -> None:
    F = np.array(given[0])
    c = weigh(SemiVRed, beta, F)
    below = c[F.mean() - 1e-12 > F]
    np.testing.assert_allclose(below, below[:1].repeat(len(below)), atol=1e-12)


# Negative weights ---------------------------------------------------------------------------------------------------


@both
def test_a_negative_weight_is_used_and_counted(method: type[VRed]) -> None:
    c = weigh(method, 10.0, [0.0, 0.0, 3.0])
    assert (c < 0).sum() == 2
    strategy = method(beta=10.0)
    cohort = cohort_of(np.eye(3), losses=[0.0, 0.0, 3.0])
    assert strategy.own_metrics(cohort, strategy.weigh(cohort)) == {"negative-weights": 2.0}
    assert method.reports == ("negative-weights",)


@both
@pytest.mark.parametrize(("beta", "negative"), [(0.0, 0), (5.0, 3)])
def test_the_number_of_negative_weights_is_a_metric_of_the_round(
    method: type[VRed], beta: float, negative: int
) -> None:
    def losing(loss: float) -> Any:
        def fault(sent: Message, reply: Message) -> list[Message]:
            return metrics({"loss-before": loss})(sent, reply)

        return fault

    faults = {(f"site-{k}", 1): losing(0.0 if k < 3 else 4.0) for k in range(4)}
    finished: list[Any] = []
    strategy = method(beta=beta, weighting="uniform")
    result = strategy.start(
        MemoryGrid(quadratics(4), faults=faults), record(initial_model()), num_rounds=1, on_round=finished.append
    )
    assert finished[0].metrics["negative-weights"] == negative
    assert result.train_metrics_clientapp[1]["negative-weights"] == negative
    assert sum(c < 0 for c in finished[0].coefficients.values()) == negative
    assert sum(finished[0].coefficients.values()) == pytest.approx(1.0)


# Edge cases ---------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("losses", [[0.0], [1e30], [0.0, 1e-30, 1e30], [1e30, 1e30]])
def test_extreme_losses_give_the_formulas_weights(method: type[VRed], losses: list[float]) -> None:
    c = weigh(method, 1.0, losses)
    assert np.isfinite(c).all()
    scale = max(1.0, np.abs(c).max())
    assert c.sum() / scale == pytest.approx(1.0 / scale, abs=1e-12)

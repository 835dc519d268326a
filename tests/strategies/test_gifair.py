import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import GiFair

from .helpers import cohort_of

strengths = st.floats(0.0, 0.999999)


def weigh(
    strength: float, losses: list[float] | FloatArray, counts: list[float] | FloatArray | None = None
) -> FloatArray:
    weighting = "uniform" if counts is None else "examples"
    cohort = cohort_of(np.eye(len(losses)), losses=losses, counts=counts, weighting=weighting)
    return GiFair(strength=strength, weighting=weighting).weigh(cohort)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_ties_count_for_nothing_by_hand() -> None:
    # r = (1, 1, -2), λ = 0.9 · ⅓ / 2
    assert weigh(0.9, [2.0, 2.0, 1.0]) == pytest.approx([1 / 3 + 0.15, 1 / 3 + 0.15, 1 / 3 - 0.3])


# Properties ---------------------------------------------------------------------------------------------------------


@given(
    losses=st.lists(st.sampled_from((0.0, 0.5, 1.0, 2.0)), min_size=1, max_size=9),
    strength=strengths,
    seed=st.integers(0, 9),
)
def test_weights_are_positive_and_sum_to_one(losses: list[float], strength: float, seed: int) -> None:
    n = np.random.default_rng(seed).integers(1, 1000, len(losses)).astype(float)
    c = weigh(strength, losses, n)
    assert c.min() > 0.0
    assert c.sum() == pytest.approx(1.0, abs=1e-12)


@given(losses=st.lists(st.floats(0.0, 5.0), min_size=2, max_size=8, unique=True), strength=st.floats(0.01, 0.99))
def test_the_penalty_is_the_sum_of_pairwise_differences(losses: list[float], strength: float) -> None:
    """c is the gradient over F of Σ p F + λ Σ_{i<j} |F_i − F_j|, here by differences along the order of losses."""
    F, h = np.sort(losses), 1e-6
    if np.diff(F).min() < 1e-4:
        return
    m = len(F)
    lam = strength / m / (m - 1)

    def penalised(x: FloatArray) -> float:
        return float(x.mean() + lam * 0.5 * np.abs(x[:, None] - x[None, :]).sum())

    numeric = [(penalised(F + h * e) - penalised(F - h * e)) / (2 * h) for e in np.eye(m)]
    np.testing.assert_allclose(weigh(strength, F), numeric, atol=1e-7)


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_extreme_losses_and_counts() -> None:
    assert weigh(0.5, [0.0, 1e-30, 1e30]) == pytest.approx([1 / 6, 1 / 3, 1 / 2])
    c = weigh(0.999999, [0.0, 1.0], [1, 1e9])
    assert c.min() > 0.0
    assert c.sum() == pytest.approx(1.0, abs=1e-15)

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import DeltaFL

from .helpers import cohort_of


def weigh(theta: float, losses: list[float] | FloatArray, counts: list[float] | FloatArray | None = None) -> FloatArray:
    weighting = "uniform" if counts is None else "examples"
    cohort = cohort_of(np.eye(len(losses)), losses=losses, counts=counts, weighting=weighting)
    return DeltaFL(theta=theta, weighting=weighting).weigh(cohort)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_ties_of_cumulated_prior_and_theta_are_exact() -> None:
    """With theta = j/m the m − j lowest losses hold exactly 1 − theta: the (m − j)-th of them is Q, in the tail."""
    for m in (2, 3, 7, 10, 49, 100):
        for j in range(1, m + 1):
            wanted = 1 - Fraction(j, m)
            position = next(i for i in range(1, m + 1) if Fraction(i, m) >= wanted)
            c = weigh(j / m, np.arange(m, dtype=np.float64))
            assert (c > 0).sum() == m - position + 1, (m, j)


@given(n=st.lists(st.integers(1, 20), min_size=2, max_size=9), data=st.data())
def test_exact_ties_hold_for_unequal_priors_too(n: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(1, len(n) - 1))
    theta = float(1 - Fraction(sum(n[:position]), sum(n)))
    c = weigh(theta, np.arange(len(n), dtype=np.float64), n)
    assert np.flatnonzero(c).tolist() == list(range(position - 1, len(n)))


def test_the_slack_makes_no_tie_of_what_is_none() -> None:
    for beside in [-1e-7, 1e-7]:
        c = weigh(0.5 + beside, [1.0, 2.0, 3.0, 4.0])
        assert (c > 0).sum() == (3 if beside > 0 else 2)


# Properties ---------------------------------------------------------------------------------------------------------


@given(
    losses=st.lists(st.sampled_from((0.0, 0.5, 1.0, 2.0, 3.5)), min_size=1, max_size=9),
    theta=st.floats(1e-3, 1.0),
    seed=st.integers(0, 99),
)
def test_the_tail_is_the_highest_losses_shared_by_prior(losses: list[float], theta: float, seed: int) -> None:
    F, n = np.array(losses), np.random.default_rng(seed).integers(1, 9, len(losses)).astype(float)
    c, p = weigh(theta, F, n), n / n.sum()
    tail = c > 0
    assert c.sum() == pytest.approx(1.0, abs=1e-12)
    assert not (~tail).any() or F[tail].min() > F[~tail].max()
    np.testing.assert_allclose(c[tail], p[tail] / p[tail].sum(), rtol=1e-12)
    assert p[tail].sum() >= theta - 1e-9
    above = F[tail].min() < F
    assert p[above].sum() <= theta + 1e-9

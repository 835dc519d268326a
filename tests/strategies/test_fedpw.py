"""FedPW: two rounds by hand, its reductions, and sums that are zero."""

from statistics import stdev
from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.arrays import FloatArray
from fairbloom.strategies import FedPW

from .helpers import advance, cohort_of

FIRST = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
# Updates with the sums (2, 2) and (1, 1).
SECOND = np.array([[2.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])

THIRD = [1 / 3, 1 / 3, 1 / 3]


def weights_after(method: FedPW, U: FloatArray, losses: list[float], **given: Any) -> FloatArray:
    """Return c of a round that the method remembers."""
    return advance(method, cohort_of(U, losses=losses, past=method.past, **given))


def test_two_rounds_by_hand() -> None:
    """Of the losses, s = (1, 2, 3)/6 and (1, 1, 0)/2, and of the updates, t = (1, 1, 2)/4 and
    (2, −1, 1)/2. The shares of the second round are 1/2 · 2/3 and 1/2 · 1/4."""
    method = FedPW(beta=0.5)
    weights_after(method, FIRST, [1.0, 2.0, 3.0])
    c = weights_after(method, SECOND, [2.0, 2.0, 0.0])
    p = np.array([7.0, 11.0, 12.0]) / 30.0
    q = np.array([31.0, 19.0, 50.0]) / 100.0
    np.testing.assert_allclose(
        np.transpose([*method.past.memory["states"].values()]),
        [p, q, np.array([4.0, 5.0, 3.0]) / 18.0, np.array([15.0, 3.0, 18.0]) / 64.0],
    )
    np.testing.assert_allclose(c, (stdev(p) * p + stdev(q) * q) / (stdev(p) + stdev(q)))


@pytest.mark.parametrize(
    ("U", "losses", "p", "q"),
    [
        (SECOND, [1.0, 2.0, 3.0], [1 / 6, 1 / 3, 1 / 2], [1.0, -1 / 2, 1 / 2]),
        (FIRST, [0.0, 0.0, 0.0], THIRD, [1 / 4, 1 / 4, 1 / 2]),
        (FIRST, [-1.0, 3.0, -2.0], THIRD, [1 / 4, 1 / 4, 1 / 2]),
        (0.0 * FIRST, [-1.0, 0.0, -3.0], [1 / 4, 0.0, 3 / 4], THIRD),
        (FIRST - FIRST.mean(axis=0), [1.0, 0.0, -3.0], [-1 / 2, 0.0, 3 / 2], THIRD),
        (np.array([[0.1], [0.2], [-0.3]]), [1.0, 1.0, 1.0], THIRD, THIRD),
    ],
)
def test_with_beta_1_the_first_round_is_that_of_shares(
    U: FloatArray, losses: list[float], p: list[float], q: list[float]
) -> None:
    """A sum of 0 counts all the same, up to rounding in 0.1 + 0.2 − 0.3; a negative one divides."""
    method = FedPW(beta=1.0)
    weights_after(method, U, losses)
    np.testing.assert_allclose(
        np.array([*method.past.memory["states"].values()])[:, :2], np.transpose([p, q]), atol=1e-15
    )


def test_after_a_first_round_that_sums_to_0_nothing_moves() -> None:
    """β is 0, because what it divides by is 0."""
    method = FedPW()
    weights_after(method, 0.0 * FIRST, [0.0, 0.0, 0.0])
    np.testing.assert_allclose(weights_after(method, FIRST, [1.0, 2.0, 3.0]), THIRD)


def test_absent_clients_keep_their_numbers_newcomers_have_none() -> None:
    """In the second round δ = (1, 3, 0)/24 + (1, 1, 1)/6 for a, c and d."""
    method = FedPW(beta=0.5)
    weights_after(method, FIRST, [1.0, 2.0, 3.0], names=["a", "b", "c"])
    weights_after(method, FIRST, [2.0, 2.0, 2.0], names=["a", "c", "d"])
    assert {
        name: state[0] for name, state in method.past.memory["states"].items()
    } == pytest.approx({"a": 9 / 32, "b": 1 / 3, "c": 19 / 32, "d": 1 / 8})


@pytest.mark.parametrize("m", [1, 3])
def test_equal_losses_and_a_symmetric_gram_are_averaged(m: int) -> None:
    method = FedPW()
    for t in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(
            weights_after(method, np.eye(m) * t + 0.2, [2.0 * t] * m), np.full(m, 1 / m), rtol=1e-12
        )


def test_scales_of_losses_and_updates_do_not_matter() -> None:
    plain = FedPW()
    scaled = FedPW()
    for U, F in ((FIRST, [1.0, 2.0, 3.0]), (SECOND, [4.0, 1.0, 9.0]), (SECOND[:2], [0.1, 0.2])):
        c = weights_after(scaled, 1e-3 * U, [7.0 * loss for loss in F])
        np.testing.assert_allclose(c, weights_after(plain, U, F), rtol=1e-12)

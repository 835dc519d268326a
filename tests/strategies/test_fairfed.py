"""FairFed: weights by how far a client's gap between two groups is from the gap over all clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.cohort import Cohort
from fairbloom.strategies import FairFed
from tests.federation import MemoryGrid, metrics, quadratics, run

from .helpers import cohort_of

COUNTS = ("positives-0", "positives-1", "hits-0", "hits-1")
Row = tuple[int, int, int, int]


def cohort(
    rows: Sequence[Row],
    counts: Sequence[float] | None = None,
    accuracies: Sequence[float] | None = None,
    **changes: Any,
) -> Cohort:
    """Return clients with these counts, positives in both groups and hits in both; of 100 examples each, all alike."""
    m = len(rows)
    return cohort_of(
        np.eye(m),
        counts=counts or [100.0] * m,
        accuracies=accuracies or [0.8] * m,
        groups=dict(zip(COUNTS, zip(*rows, strict=True), strict=True)),
        **changes,
    )


def after(method: FairFed, cohort: Cohort) -> dict[str, float]:
    """Return ω once a round is remembered."""
    method.remember(cohort, method.weigh(cohort), {})
    weights: dict[str, float] = method.memory["weights"]
    return weights


# By hand ------------------------------------------------------------------------------------------------------------


def test_weights_are_those_of_a_hand_computed_round() -> None:
    """Gaps: 20/40 less 0/40 is 0.5, 16/40 less 12/40 is 0.1, 4/20 less 8/20 is −0.2; 40/100 less 20/100 is 0.2.

    So the clients are 0.3, 0.1 and 0.4 away from it, 0.8/3 on average.
    """
    there = cohort([(40, 40, 0, 20), (40, 40, 12, 16), (20, 20, 8, 4)], [100.0, 200.0, 100.0])
    omega = np.array([0.25, 0.5, 0.25]) - 0.6 * (np.array([0.3, 0.1, 0.4]) - 0.8 / 3)
    method = FairFed(beta=0.6)
    np.testing.assert_allclose(method.weigh(there), omega, rtol=1e-12)
    assert list(after(method, there).values()) == pytest.approx(omega.tolist(), rel=1e-12)


# Memory and edges ---------------------------------------------------------------------------------------------------


ROWS: list[Row] = [(40, 40, 0, 20), (40, 40, 12, 16), (20, 20, 8, 4)]


def test_a_size_counts_as_it_was_first_known() -> None:
    grown = cohort(ROWS[:2], [400.0, 300.0], names=["a", "b"], roster={"a": 100.0, "b": 300.0})
    assert FairFed(beta=0.0).weigh(grown).tolist() == pytest.approx([0.25, 0.75])


def test_negative_weights_are_used_and_counted() -> None:
    method, there = FairFed(beta=5.0), cohort(ROWS, [100.0, 200.0, 100.0])
    c = method.weigh(there)
    assert c.min() < 0.0
    assert c.sum() == pytest.approx(1.0)
    assert method.own_metrics(there, c) == {"negative-weights": float((c < 0.0).sum())}


def test_without_positive_weights_examples_count() -> None:
    method = FairFed(beta=0.0)
    method.memory = {"weights": {"a": -0.5, "b": 0.2}}
    there = cohort(ROWS[:2], [100.0, 300.0], names=["a", "b"])
    assert method.weigh(there).tolist() == pytest.approx([0.25, 0.75])


# What replies may say -----------------------------------------------------------------------------------------------


def test_counts_that_no_groups_can_have_are_refused_by_name() -> None:
    said: list[tuple[dict[str, Any], str]] = [
        ({"positives-0": -1}, "'positives-0' must be a whole number from 0"),
        ({"positives-1": 3, "hits-1": 4}, "'hits-1' must be a whole number from 0 to 3, got 4"),
        ({"positives-0": 10**6}, "'positives-0' must be a whole number from 0 to"),
        ({"positives-1": 2.5}, "'positives-1' must be a whole number"),
        ({"num-examples": 9, "positives-0": 5, "positives-1": 5, "hits-0": 0, "hits-1": 0}, "10 together, of 9 exam"),
        ({"hits-0": float("nan")}, "'hits-0' must be a finite number"),
        ({"positives-1": None}, "'positives-1'"),
        ({"accuracy-before": 1.5}, "accuracy-before"),
    ]
    for numbers, words in said:
        grid = MemoryGrid(quadratics(4), faults={("site-2", 1): metrics(numbers)})
        _, (finished,) = run(FairFed(), grid, rounds=1)
        assert set(finished.refused) == {"site-2"}, words
        assert words in finished.refused["site-2"]
        assert set(finished.coefficients) == {"site-0", "site-1", "site-3"}

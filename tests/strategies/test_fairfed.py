"""FairFed: weights by how far a client's gap between two groups is from the gap over all clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Cohort
from fairbloom.strategies import FairFed
from tests.federation import MemoryGrid, metrics, quadratics, run

from .helpers import client_names, cohort_of
from .reference import Seen, fairfed_weights

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


@st.composite
def client_rows(draw: st.DrawFn, min_size: int = 1) -> tuple[list[Row], list[float], list[float]]:
    """Return counts of groups, numbers of examples and accuracies; some clients lack positives in a group."""
    rows, counts, accuracies = [], [], []
    for _ in range(draw(st.integers(min_size, 6))):
        positives = [draw(st.integers(0, 30)) for _ in range(2)]
        hits = [draw(st.integers(0, most)) for most in positives]
        rows.append((*positives, *hits))
        counts.append(float(draw(st.integers(60, 500))))
        accuracies.append(draw(st.floats(0.0, 1.0)))
    return rows, counts, accuracies  # type: ignore[return-value]


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


# Properties ---------------------------------------------------------------------------------------------------------


@given(st.lists(client_rows(), min_size=1, max_size=5), st.floats(0.0, 1.0), st.integers(0, 10**6))
def test_rounds_with_other_clients_are_those_of_the_reference(
    rounds: list[tuple[list[Row], list[float], list[float]]], beta: float, seed: int
) -> None:
    """Newcomers enter at their share of all that are known by then, and who is absent keeps its weight."""
    random, method, history = np.random.default_rng(seed), FairFed(beta=beta), list[Seen]()
    known: dict[str, float] = {}
    sizes = dict(zip(client_names(9), random.integers(60, 500, 9).astype(float).tolist(), strict=True))
    for number, (rows, _, accuracies) in enumerate(rounds, 1):
        names = sorted(random.choice(list(sizes), len(rows), replace=False).tolist())
        known |= {name: sizes[name] for name in names}
        there = cohort(
            rows, [sizes[name] for name in names], accuracies, names=names, roster=dict(sorted(known.items()))
        )
        columns = [there.metrics[metric].tolist() for metric in COUNTS]
        groups = {m: dict(zip(names, column, strict=True)) for m, column in zip(COUNTS, columns, strict=True)}
        updates = {name: np.zeros(1) for name in names}
        counts, right = {name: sizes[name] for name in names}, dict(zip(names, accuracies, strict=True))
        history.append(Seen(number, 5, updates, {}, counts, right, {}, {}, groups, dict(known)))
        expected = fairfed_weights(history, beta)
        assert after(method, there) == pytest.approx(expected, rel=1e-9, abs=1e-9)


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

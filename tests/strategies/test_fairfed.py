"""FairFed: weights by how far a client's gap between two groups is from the gap over all clients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Cohort
from fairbloom.strategies import FairFed, FedAvg

from ..rounds.helpers import run
from .helpers import MemoryGrid, client_names, cohort_of, quadratics
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


# Reductions ---------------------------------------------------------------------------------------------------------


@given(client_rows())
def test_beta_zero_is_fedavg(given: tuple[list[Row], list[float], list[float]]) -> None:
    rows, counts, accuracies = given
    there = cohort(rows, counts, accuracies, weighting="examples")
    np.testing.assert_allclose(FairFed(beta=0.0).weigh(there), FedAvg().weigh(there), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.3, 1.0, 10.0])
def test_equally_far_clients_are_weighted_as_by_fedavg(beta: float) -> None:
    """Two clients with the same positives have their gaps at the same distance from that of the sums."""
    there = cohort([(10, 20, 3, 15), (10, 20, 8, 4)], [30.0, 90.0])
    np.testing.assert_allclose(FairFed(beta=beta).weigh(there), [0.25, 0.75], rtol=1e-12)


def test_one_client_alone_has_weight_one() -> None:
    for rows in ([(10, 10, 3, 9)], [(0, 10, 0, 9)]):
        np.testing.assert_allclose(FairFed(beta=7.0).weigh(cohort(rows)), [1.0], rtol=1e-12)


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


@given(client_rows(2), st.floats(0.0, 2.0), st.randoms(use_true_random=False))
def test_the_order_of_clients_makes_no_difference(
    given: tuple[list[Row], list[float], list[float]], beta: float, random: Any
) -> None:
    rows, counts, accuracies = given
    order = list(range(len(rows)))
    random.shuffle(order)
    c = FairFed(beta=beta).weigh(cohort(rows, counts, accuracies))
    turned = FairFed(beta=beta).weigh(
        cohort([rows[k] for k in order], [counts[k] for k in order], [accuracies[k] for k in order])
    )
    np.testing.assert_allclose(turned, c[order], rtol=1e-9, atol=1e-9)


@given(client_rows())
def test_groups_with_each_others_names_are_the_same_groups(given: tuple[list[Row], list[float], list[float]]) -> None:
    rows, counts, accuracies = given
    swapped = [(b, a, d, c) for a, b, c, d in rows]
    one, other = (FairFed(beta=0.4).weigh(cohort(each, counts, accuracies)) for each in (rows, swapped))
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@given(client_rows(), st.floats(0.0, 1.0))
def test_the_sum_of_the_weights_of_a_rounds_clients_stays(
    given: tuple[list[Row], list[float], list[float]], beta: float
) -> None:
    rows, counts, accuracies = given
    there, method = cohort(rows, counts, accuracies), FairFed(beta=beta)
    for _ in range(4):
        assert sum(after(method, there).values()) == pytest.approx(1.0, abs=1e-9)
        assert method.weigh(there).sum() == pytest.approx(1.0, abs=1e-9)


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


def saying(**metrics: float) -> Any:
    """Return a fault: a reply in which these metrics are others."""

    def fault(message: Message, reply: Message) -> list[Message]:
        record: MetricRecord = reply.content.metric_records["metrics"]
        for name, value in metrics.items():
            record[name.replace("_", "-")] = value
        return [reply]

    return fault


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"positives_0": -1}, "'positives-0' must be a whole number from 0"),
        ({"hits_1": -1}, "'hits-1' must be a whole number from 0"),
        ({"positives_1": 3, "hits_1": 4}, "'hits-1' must be a whole number from 0 to 3, got 4"),
        ({"positives_0": 10**6}, "'positives-0' must be a whole number from 0 to"),
        ({"positives_1": 2.5}, "'positives-1' must be a whole number"),
        ({"num_examples": 9, "positives_0": 5, "positives_1": 5, "hits_0": 0, "hits_1": 0}, "10 together, of 9 exam"),
        ({"hits_0": float("nan")}, "'hits-0' must be a finite number"),
        ({"accuracy_before": 1.5}, "accuracy-before"),
    ],
    ids=str,
)
def test_counts_that_no_groups_can_have_are_refused_by_name(said: Mapping[str, float], words: str) -> None:
    grid = MemoryGrid(quadratics(4), faults={("site-2", 1): saying(**said)})
    _, (finished,) = run(FairFed(), grid, rounds=1)
    assert set(finished.refused) == {"site-2"}
    assert words in finished.refused["site-2"]
    assert set(finished.coefficients) == {"site-0", "site-1", "site-3"}


def test_a_client_without_the_counts_is_refused_with_a_remedy() -> None:
    def without(message: Message, reply: Message) -> list[Message]:
        del reply.content.metric_records["metrics"]["positives-1"]
        return [reply]

    grid = MemoryGrid(quadratics(3), faults={("site-1", 1): without})
    _, (finished,) = run(FairFed(), grid, rounds=1)
    for words in ("'positives-1'", "Fairbloom's own client", "docs/flower.md"):
        assert words in finished.refused["site-1"]
    assert "app = fair(" not in finished.refused["site-1"]


def test_clients_are_asked_for_counts_and_accuracy() -> None:
    grid = MemoryGrid(quadratics(3))
    run(FairFed(), grid, rounds=2)
    for _, message in grid.sent_to(MessageType.TRAIN):
        assert message.content.config_records["config"]["measure"] == ["accuracy-before", *sorted(COUNTS)]

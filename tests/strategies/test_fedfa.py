from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbloom.rounds.cohort import Kept
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedFa

from .helpers import (
    BUFFERS,
    MemoryGrid,
    client_names,
    cohort_of,
    error,
    flat,
    initial_model,
    quadratics,
    record,
    unpack,
)
from .reference import Seen, fedfa


def first_round(accuracies: Sequence[float], **arguments: Any) -> FloatArray:
    return FedFa(**arguments).weigh(cohort_of(np.eye(len(accuracies)), accuracies=accuracies))


# Reductions ---------------------------------------------------------------------------------------------------------


@given(m=st.integers(1, 8), accuracy=st.floats(1e-6, 1.0), alpha=st.floats(0.1, 5.0), beta=st.floats(0.0, 5.0))
def test_equal_accuracies_and_participation_are_the_mean(m: int, accuracy: float, alpha: float, beta: float) -> None:
    np.testing.assert_allclose(first_round([accuracy] * m, alpha=alpha, beta=beta), 1.0 / m, rtol=1e-12)


# Closed forms -------------------------------------------------------------------------------------------------------


def test_accuracies_by_hand() -> None:
    # A = (½, ¼, ¼): a = (1, 2, 2) bits, of 5
    assert first_round([0.5, 0.25, 0.25], alpha=1.0, beta=0.0) == pytest.approx([0.2, 0.4, 0.4])
    # with beta, f = 1/3 each: ½ a/5 + ½ ⅓
    assert first_round([0.5, 0.25, 0.25]) == pytest.approx([0.1 + 1 / 6, 0.2 + 1 / 6, 0.2 + 1 / 6])


# Properties ---------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from((0.0, 0.5, 1.0)),
    beta=st.sampled_from((0.5, 2.0)),
    momentum=st.sampled_from((0.0, 0.5, 0.9)),
)
def test_velocity_and_participation_follow_the_definition(
    seed: int, alpha: float, beta: float, momentum: float
) -> None:
    """Random participants over ten rounds, one of them skipped; the memory goes through `remember` alone."""
    rng = np.random.default_rng(seed)
    strategy = FedFa(alpha=alpha, beta=beta, server_momentum=momentum)
    memory: dict[Kept, FloatArray] = {}
    history: list[Seen] = []
    for t in range(1, 11):
        names = [name for name in client_names(6) if rng.random() < 0.5]
        if not names or t == 4:
            continue
        U, A = rng.normal(size=(len(names), 5)), rng.uniform(size=len(names))
        vectors, accuracies = (dict(zip(names, column, strict=True)) for column in (U, A))
        history.append(Seen(t, 10, vectors, {}, dict.fromkeys(names, 1.0), accuracies))
        cohort = cohort_of(U, accuracies=A, names=names, round=t, memory=memory)
        rows = np.vstack([U, *memory.values()])
        c = strategy.weigh(cohort)
        expected = fedfa(history, alpha, beta, momentum)
        np.testing.assert_allclose(c @ rows, expected, rtol=1e-9, atol=1e-12)
        memory = {kept: mix @ rows for kept, mix in strategy.remember(cohort, c, {}).items()}
    took_part = [name for seen in history for name in seen.updates]
    assert strategy.memory.get("rounds", {}) == {name: took_part.count(name) for name in set(took_part)}


# Edge cases ---------------------------------------------------------------------------------------------------------


def test_accuracies_are_floored_at_1e_minus_6() -> None:
    for A in ([0.0, 0.0], [0.0, 1.0], [1e-30, 1.0], [1e-6, 1.0], [1.0, 1.0, 0.0], [-1.0, 0.5]):
        floored = np.maximum(A, 1e-6)
        bits = -np.log2(floored / floored.sum())
        np.testing.assert_allclose(first_round(A, alpha=1.0, beta=0.0), bits / bits.sum(), rtol=1e-12)
        assert np.isfinite(first_round(A)).all()


def test_one_client_has_weight_one_and_still_its_momentum() -> None:
    kept = {Kept("velocity", 1): np.array([2.0, 0.0])}
    for accuracy in (0.0, 0.5, 1.0):
        c = FedFa(server_momentum=0.5).weigh(cohort_of(np.array([[1.0, 1.0]]), accuracies=[accuracy], memory=kept))
        assert c.tolist() == [1.0, 0.5]


def test_a_skipped_round_leaves_participation_and_velocity() -> None:
    states: list[dict[str, Any]] = []
    clients = quadratics(3)
    strategy = FedFa(buffers=BUFFERS)
    grid = MemoryGrid(clients, faults={(name, 2): error for name in clients})
    models = []

    def on_round(finished: Any) -> None:
        states.append(strategy.state_dict())
        models.append(flat(unpack(finished.arrays)))

    strategy.start(grid, record(initial_model()), num_rounds=3, on_round=on_round)
    assert states[0]["memory"] == states[1]["memory"] == {"rounds": dict.fromkeys(clients, 1)}
    assert states[2]["memory"] == {"rounds": dict.fromkeys(clients, 2)}
    np.testing.assert_array_equal(models[0], models[1])
    rows = [state["rows"][0]["values"] for state in states]
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_allclose(models[1] - models[2], rows[2].astype(np.float64), rtol=1e-4, atol=1e-6)

"""A second update in each reply: it is screened as the first, is a row of the Gram matrix, and part of the step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from numpy.typing import NDArray

from fairbloom.protocol.names import ARRAYS_DISPARITY
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.round import Round, size_on_the_wire
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FairStrategy
from tests.federation import (
    BUFFERS,
    TRAINABLE,
    Fault,
    MemoryGrid,
    Quadratic,
    flat,
    initial_model,
    record,
    run,
    unflat,
    unpack,
    without,
)
from tests.strategies.helpers import Arrays

FIRST, SECOND, OLD = 0.25, -0.5, 0.125
"""What the method below weighs its rows by."""


class Both(FairStrategy):
    """It weighs updates, second ones and an old second one by these numbers, and keeps the sum of the second ones."""

    second = ARRAYS_DISPARITY
    weights: Sequence[float] = (FIRST, SECOND)

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.cohort = cohort
        return np.array([*np.repeat(self.weights, cohort.size), *(OLD for _ in cohort.memory)])

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> Mapping[Kept, FloatArray]:
        rows = np.arange(cohort.rows)
        kept = (rows >= cohort.size) & (rows < 2 * cohort.size)
        return {Kept("second", cohort.round): kept.astype(np.float64)}


class Replying(Quadratic):
    """A client that also replies its model after a step along a vector of its own, with the trainable arrays alone."""

    def __init__(self, name: str, factor: float = 1.0) -> None:
        super().__init__(name)
        self.along = factor * self.target[::-1] / 10.0

    def moved(self, arrays: Arrays) -> Arrays:
        return unflat(flat(arrays) - self.along, arrays)

    def __call__(self, message: Message) -> Message:
        reply = super().__call__(message)
        if message.metadata.message_type == MessageType.TRAIN:
            reply.content[ARRAYS_DISPARITY] = record(self.moved(unpack(message.content.array_records["arrays"])))
        return reply


def clients_of(m: int, **factors: float) -> dict[str, Replying]:
    return {name: Replying(name, factors.get(name[-1], 1.0)) for name in (f"site-{k}" for k in range(m))}


def rounds_of(
    method: FairStrategy,
    rounds: int = 1,
    faults: Mapping[tuple[str, int], Fault] | None = None,
    clients: Mapping[str, Replying] | None = None,
) -> list[Round]:
    return run(method, MemoryGrid(clients or clients_of(4), faults=faults), rounds=rounds)[1]


def changed(**arrays: NDArray[Any] | None) -> Fault:
    """Return the fault of a client whose second record has other arrays, or lacks some."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        there = {**unpack(reply.content.array_records[ARRAYS_DISPARITY]), **arrays}
        reply.content[ARRAYS_DISPARITY] = record({name: each for name, each in there.items() if each is not None})
        return [reply]

    return fault


# Rows -----------------------------------------------------------------------------------------------------------------


def test_a_step_has_updates_second_updates_and_kept_rows() -> None:
    method, clients = Both(buffers=BUFFERS, seed=3), clients_of(4)
    finished = rounds_of(method, 3, clients=clients)
    w, old = flat(initial_model()), np.zeros(10)
    before: Arrays = initial_model()
    for each in finished:
        u = [flat(before) - flat(client.trained(before)) for client in clients.values()]
        v = [client.along for client in clients.values()]
        w = w - FIRST * np.sum(u, axis=0) - SECOND * np.sum(v, axis=0) - OLD * old
        np.testing.assert_allclose(flat(unpack(each.arrays)), w, rtol=1e-5, atol=1e-5)
        assert each.coefficients == dict.fromkeys(clients, FIRST)
        before, old = unpack(each.arrays), np.sum(v, axis=0)
        w = flat(before)


def test_the_gram_matrix_has_second_updates_below_the_first() -> None:
    method, clients = Both(buffers=BUFFERS, seed=3), clients_of(3)
    one, _ = rounds_of(method, 2, clients=clients)
    before = unpack(one.arrays)
    u = [flat(before) - flat(client.trained(before)) for client in clients.values()]
    v = [client.along for client in clients.values()]
    rows = np.array([*u, *v, np.sum(v, axis=0)])
    assert (method.cohort.size, method.cohort.rows, method.cohort.second) == (3, 7, True)
    np.testing.assert_allclose(method.cohort.gram, rows @ rows.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(method.cohort.squared_norms, np.square(u).sum(axis=1), rtol=1e-4)


def test_bytes_count_the_arrays_of_both_records() -> None:
    (plain,), model = rounds_of(Both(buffers=BUFFERS)), initial_model()
    whole = sum(map(size_on_the_wire, model.values()))
    trainable = sum(size_on_the_wire(model[name]) for name in TRAINABLE)
    assert plain.bytes_received == 4 * (whole + trainable)
    extra = np.zeros(100)
    (more,) = rounds_of(Both(buffers=BUFFERS), faults={("site-1", 1): changed(extra=extra)})
    assert more.bytes_received == plain.bytes_received + size_on_the_wire(extra)
    assert (more.refused, more.coefficients) == ({}, plain.coefficients)
    assert flat(unpack(more.arrays)).tolist() == flat(unpack(plain.arrays)).tolist()


# What is refused ------------------------------------------------------------------------------------------------------

NAN = np.array([np.nan, 0.0, 0.0], np.float32)


def test_an_unusable_second_record_is_refused_by_name() -> None:
    """And the round ends as without it; neither record stands in for the other."""
    (absent,) = rounds_of(Both(buffers=BUFFERS), faults={("site-2", 1): lambda sent, reply: []})
    for fault, reason in (
        (without(ARRAYS_DISPARITY), "ArrayRecord 'arrays-disparity' is missing"),
        (without("arrays"), "ArrayRecord 'arrays' is missing"),
        (changed(bias=None), "ArrayRecord 'arrays-disparity': array 'bias' is missing"),
        (changed(bias=np.zeros(4, np.float32)), "ArrayRecord 'arrays-disparity': array 'bias' has shape (4,)"),
        (changed(bias=np.zeros(3, np.int64)), "ArrayRecord 'arrays-disparity': array 'bias' has dtype int64"),
        (changed(bias=NAN), "array 'bias' of the arrays-disparity is not finite"),
        (changed(bias=np.full(3, 1e30, np.float32)), "its arrays-disparity has the length 1.73205e+30"),
    ):
        (one,) = rounds_of(Both(buffers=BUFFERS), faults={("site-2", 1): fault})
        assert list(one.refused) == ["site-2"]
        assert reason in one.refused["site-2"]
        assert flat(unpack(one.arrays)).tolist() == flat(unpack(absent.arrays)).tolist()


def test_second_updates_are_compared_with_each_other() -> None:
    """They may be a thousand times as long as the first ones, or shorter: a gradient of something else is."""
    for factor in (1e4, 1e-4):
        (one,) = rounds_of(Both(buffers=BUFFERS), clients=clients_of(4, **dict.fromkeys("0123", factor)))
        assert one.refused == {}

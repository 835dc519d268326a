"""A second update in each reply: it is screened as the first, is a row of the Gram matrix, and part
of the step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from fairbloom.protocol.names import ARRAYS_DISPARITY
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import FloatArray
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.round import Round, size_on_the_wire
from fairbloom.strategies import FairStrategy
from tests.federation import (
    BUFFERS,
    TRAINABLE,
    Fault,
    flat,
    initial_model,
    no_reply,
    quadratics,
    record,
    run,
    unpack,
    without,
)

FIRST = 0.25
SECOND = -0.5
OLD = 0.125
"""The coefficients of the method below."""


class Both(FairStrategy):
    """It weighs updates, second ones and an old second one by these numbers, and keeps the sum of
    the second ones."""

    second = ARRAYS_DISPARITY

    def terms(self, server_round: int) -> Terms:
        return replace(super().terms(server_round), disparity="demographic-parity")

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.cohort = cohort
        return np.array([*np.repeat((FIRST, SECOND), cohort.size), *(OLD for _ in cohort.memory)])

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        rows = np.arange(cohort.rows)
        kept = (rows >= cohort.size) & (rows < 2 * cohort.size)
        return {Kept("second", cohort.round): kept.astype(np.float64)}


def rounds_of(
    faults: Mapping[tuple[str, int], Fault] | None = None, rounds: int = 1
) -> tuple[Both, list[Round]]:
    """Return the method, which knows its last cohort, and its rounds with four clients."""
    method = Both(buffers=BUFFERS, seed=3)
    return method, run(method, quadratics(4), rounds, faults)[1]


def changed(factor: float = 1.0, **arrays: NDArray[Any] | None) -> Fault:
    """Return a fault that scales a second update, and replaces or removes arrays of its record."""

    def fault(sent: Message, reply: Message) -> list[Message]:
        received, after = (
            unpack(each) for each in (sent.content["arrays"], reply.content[ARRAYS_DISPARITY])
        )
        there = {
            name: received[name] + np.float32(factor) * (array - received[name])
            for name, array in after.items()
        }
        there |= arrays
        reply.content[ARRAYS_DISPARITY] = record(
            {name: each for name, each in there.items() if each is not None}
        )
        return [reply]

    return fault


# Rows ---------------------------------------------------------------------------------------------


def test_a_step_has_updates_second_updates_and_kept_rows(subtests: pytest.Subtests) -> None:
    """And the Gram matrix has them in that order."""
    method, finished = rounds_of(rounds=3)
    before = initial_model()
    old = np.zeros(10)
    clients = quadratics(4)
    for each in finished:
        with subtests.test(each=each):
            u, v = (
                np.array([flat(before) - flat(after(client)) for client in clients.values()])
                for after in (
                    lambda client, w=before: client.trained(w),
                    lambda client, w=before: client.evened(w),
                )
            )
            rows = np.array([*u, *v, old])
            w = flat(before) - FIRST * u.sum(axis=0) - SECOND * v.sum(axis=0) - OLD * old
            np.testing.assert_allclose(flat(unpack(each.arrays)), w, rtol=1e-5, atol=1e-5)
            assert each.coefficients == dict.fromkeys(clients, FIRST)
            before = unpack(each.arrays)
            old = v.sum(axis=0)
    assert (method.cohort.size, method.cohort.rows, method.cohort.second) == (4, 9, True)
    np.testing.assert_allclose(method.cohort.gram, rows @ rows.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(method.cohort.squared_norms, np.square(u).sum(axis=1), rtol=1e-4)


def test_bytes_count_the_arrays_of_both_records() -> None:
    (_, (plain,)) = rounds_of()
    model = initial_model()
    whole = sum(map(size_on_the_wire, model.values()))
    trainable = sum(size_on_the_wire(model[name]) for name in TRAINABLE)
    assert plain.bytes_received == 4 * (whole + trainable)
    extra = np.zeros(100)
    _, (more,) = rounds_of({("site-1", 1): changed(extra=extra)})
    assert more.bytes_received == plain.bytes_received + size_on_the_wire(extra)
    assert (more.refused, more.coefficients) == ({}, plain.coefficients)
    assert flat(unpack(more.arrays)).tolist() == flat(unpack(plain.arrays)).tolist()


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (without(ARRAYS_DISPARITY), "ArrayRecord 'arrays-disparity' is missing"),
        (without("arrays"), "ArrayRecord 'arrays' is missing"),
        (changed(bias=None), "ArrayRecord 'arrays-disparity': array 'bias' is missing"),
        (
            changed(bias=np.zeros(4, np.float32)),
            "ArrayRecord 'arrays-disparity': array 'bias' has shape (4,)",
        ),
        (
            changed(bias=np.zeros(3, np.int64)),
            "ArrayRecord 'arrays-disparity': array 'bias' has dtype int64",
        ),
        (
            changed(bias=np.float32([np.nan, 0, 0])),
            "array 'bias' of the arrays-disparity is not finite",
        ),
        (
            changed(bias=np.full(3, 1e30, np.float32)),
            "its arrays-disparity has the length 1.73205e+30",
        ),
    ],
)
def test_an_unusable_second_record_is_refused_by_name(fault: Any, reason: str) -> None:
    """And the round ends as without it; neither record stands in for the other."""
    _, (absent,) = rounds_of({("site-2", 1): no_reply})
    _, (one,) = rounds_of({("site-2", 1): fault})
    assert list(one.refused) == ["site-2"]
    assert reason in one.refused["site-2"]
    assert flat(unpack(one.arrays)).tolist() == flat(unpack(absent.arrays)).tolist()


@pytest.mark.parametrize("factor", [1e4, 1e-4])
def test_second_updates_are_compared_with_each_other(factor: float) -> None:
    """They may be a thousand times as long as the first ones, or shorter: a gradient of something
    else is."""
    _, (one,) = rounds_of({(name, 1): changed(factor) for name in quadratics(4)})
    assert one.refused == {}

"""The state of a run: complete, plain, and enough to continue to the same bits."""

from typing import Any

import numpy as np
import pytest

from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.updates import FloatArray
from fairbloom.strategies import FedAvg, FedFV, Round
from tests.federation import (
    BUFFERS,
    KINDS,
    OPTIONS,
    MemoryGrid,
    bits,
    flat,
    initial_model,
    quadratics,
    record,
    run,
    unflat,
    unpack,
)
from tests.strategies.helpers import ARGUMENTS, CASES, make


class Counting(FedAvg):
    """Keeps a momentum row and changes its memory in place."""

    def weigh(self, cohort: Cohort) -> FloatArray:
        return np.concatenate([cohort.prior, [0.5] * len(cohort.memory)])

    def remember(self, cohort: Cohort, coefficients: FloatArray, probed: Probed) -> dict[Kept, FloatArray]:
        seen = self.memory.setdefault("seen", {})
        for name in cohort.names:
            seen.setdefault(name, []).append(cohort.round)
        return {Kept("momentum", cohort.round): coefficients}


def assert_plain(value: Any) -> None:
    assert type(value) in (str, int, float, bool, type(None), list, dict, np.ndarray), type(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(inner)
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)


@pytest.mark.parametrize(
    "cases", [[(name, ARGUMENTS[name][0]) for name in KINDS], pytest.param(CASES, marks=pytest.mark.slow)]
)
def test_a_run_resumed_from_its_state_ends_with_the_same_bits(cases: list[tuple[str, dict[str, Any]]]) -> None:
    for name, arguments in cases:
        states, finished, strategy = list[dict[str, Any]](), list[Round](), make(name, arguments, **OPTIONS)

        def on_round(r: Round, strategy: Any = strategy, finished: Any = finished, states: Any = states) -> None:
            finished.append(r)
            states.append(strategy.state_dict())

        whole = strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), num_rounds=4, on_round=on_round)
        stop = 2
        assert_plain(states[stop - 1])
        before: dict[str, Any] = {"initial_arrays": finished[stop - 1].arrays, "resume": states[stop - 1]}
        resumed, rest = run(make(name, arguments, **OPTIONS), MemoryGrid(quadratics(6), seed=9), rounds=4, **before)
        assert bits(resumed.arrays) == bits(whole.arrays), (name, arguments)
        assert [r.number for r in rest] == list(range(stop + 1, 5))
        assert [r.coefficients for r in rest] == [r.coefficients for r in finished[stop:]], (name, arguments)
        assert [r.evaluations for r in rest] == [r.evaluations for r in finished[stop:]]


def test_a_state_does_not_change_while_the_run_goes_on() -> None:
    states: list[dict[str, Any]] = []
    strategy = Counting(**OPTIONS)
    finished: list[Round] = []

    def on_round(r: Round) -> None:
        finished.append(r)
        states.append(strategy.state_dict())

    whole = strategy.start(MemoryGrid(quadratics(6)), record(initial_model()), num_rounds=5, on_round=on_round)
    assert sum(map(len, states[1]["memory"]["seen"].values())) == 2 * 4
    again = Counting(**OPTIONS)
    resumed, _ = run(again, rounds=5, initial_arrays=finished[1].arrays, resume=states[1])
    assert bits(resumed.arrays) == bits(whole.arrays)
    assert again.memory == strategy.memory
    assert sum(map(len, states[1]["memory"]["seen"].values())) == 2 * 4


def test_a_row_of_several_updates_is_kept_as_their_combination() -> None:
    result, _ = run(Counting(buffers=BUFFERS), rounds=3)
    model, clients, v = {k: a.astype(np.float64) for k, a in initial_model().items()}, quadratics(6), np.zeros(10)
    n = np.array([c.examples for c in clients.values()], np.float64)
    for _ in range(3):
        U = np.array([flat(model) - flat(c.trained(model)) for c in clients.values()])
        v = 0.5 * v + n / n.sum() @ U
        model |= unflat(flat(model) - v, model)
    np.testing.assert_allclose(flat(unpack(result.arrays)), flat(model), rtol=2e-5)


def test_a_second_run_of_the_same_object_starts_afresh() -> None:
    strategy = FedFV(tau=2, **OPTIONS)
    first, _ = run(strategy)
    second, _ = run(strategy)
    assert bits(second.arrays) == bits(first.arrays)


def test_resuming_a_finished_run_changes_nothing() -> None:
    strategy = FedFV(**OPTIONS)
    whole, _ = run(strategy, rounds=3)
    again, rounds = run(FedFV(**OPTIONS), rounds=3, initial_arrays=whole.arrays, resume=strategy.state_dict())
    assert rounds == []
    assert bits(again.arrays) == bits(whole.arrays)

"""Vectors that a method keeps and sends to its clients in addition to the model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType

from fairbloom.protocol.names import CONTROL
from fairbloom.rounds.aggregation import MethodError
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.cohort import Cohort, Kept, Probed
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.round import size_on_the_wire
from fairbloom.strategies import FairStrategy
from tests.federation import BUFFERS, TRAINABLE, MemoryGrid, initial_model, quadratics, run, unpack

FACTOR = 0.25


class Sending(FairStrategy):
    """FedAvg that keeps its last step and sends a quarter of it to the clients of the next
    round."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"buffers": BUFFERS, **options})
        self.cohorts: list[Cohort] = []

    def weigh(self, cohort: Cohort) -> FloatArray:
        self.cohorts.append(cohort)
        return np.concatenate([cohort.prior, np.zeros(len(cohort.memory))])

    def remember(
        self, cohort: Cohort, coefficients: FloatArray, probed: Probed
    ) -> Mapping[Kept, FloatArray]:
        return {Kept("step", cohort.round): coefficients}

    def sends(self) -> Mapping[str, tuple[Kept, float]]:
        kept = next(iter(self.progress.kept), None)
        return {} if kept is None else {CONTROL: (kept, FACTOR)}


def vectors(grid: MemoryGrid) -> dict[int, list[Model]]:
    """Return the vectors that went out in each round, one for each message."""
    found: dict[int, list[Model]] = {}
    for _, message in grid.sent_to(MessageType.TRAIN):
        there = message.content.array_records
        number = int(str(message.content.config_records["config"]["server-round"]))
        found.setdefault(number, []).extend([unpack(there[CONTROL])] if CONTROL in there else [])
    return found


def test_each_participant_gets_the_kept_row_times_its_factor(subtests: pytest.Subtests) -> None:
    grid = MemoryGrid(quadratics(4))
    method = Sending(fraction_train=0.5)
    models = [initial_model(), *(unpack(each.arrays) for each in run(method, grid, 3)[1])]
    sent = vectors(grid)
    assert {number: len(each) for number, each in sent.items()} == {1: 0, 2: 2, 3: 2}
    for number in (2, 3):
        with subtests.test(number=number):
            before, after = models[number - 2 : number]
            step = {name: np.float32(FACTOR * (before[name] - after[name])) for name in TRAINABLE}
            for each in sent[number]:
                assert list(each) == list(TRAINABLE)
                for name, array in step.items():
                    assert (each[name].dtype, each[name].shape) == (array.dtype, array.shape)
                    np.testing.assert_allclose(each[name], array, rtol=0, atol=1e-6)
    assert [dict(cohort.sent) for cohort in method.cohorts] == [
        {},
        {CONTROL: FACTOR},
        {CONTROL: FACTOR},
    ]


def test_their_bytes_are_counted_and_who_evaluates_gets_none() -> None:
    """In our own loop as under Flower's hooks."""
    grid = MemoryGrid(quadratics(3))
    method = Sending(fraction_evaluate=0.0)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), 2)
    first, second = loop.run(initial_model(), measure=lambda number: [], measure_after=[])
    (_, in_second) = vectors(grid).values()
    each = sum(size_on_the_wire(array) for array in in_second[0].values())
    assert len(in_second) == 3
    assert second.bytes_sent - first.bytes_sent == 3 * each > 0
    grid = MemoryGrid(quadratics(3))
    _, rounds = run(Sending(fraction_evaluate=0.0), grid, 2)
    assert rounds[1].bytes_sent - rounds[0].bytes_sent == 3 * each
    run(Sending(), grid, 3)
    assert all(CONTROL not in message.content for _, message in grid.sent_to(MessageType.EVALUATE))


def test_a_row_of_another_model_ends_the_run_with_the_remedy() -> None:
    """As where a run goes on with other parameters frozen."""
    method = Sending()
    run(method, quadratics(2), 1)
    with pytest.raises(
        MethodError, match=r"Sending keeps an update of round 1 with 10 numbers, and 7 are trained"
    ):
        run(Sending(frozen=["bias"]), quadratics(2), 2, resume=method.state_dict())

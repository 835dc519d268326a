"""Runs of methods whose clients keep states between rounds, over a grid in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MessageType

from fairbloom.rounds.method import FloatArray
from fairbloom.rounds.round import Round
from fairbloom.strategies import FairStrategy
from tests.strategies.helpers import Fault, MemoryGrid, record, unpack
from tests.strategies.keeping import Keeping

PLAIN: dict[str, Any] = {"fraction_evaluate": 0.0, "unused_rounds": 0, "update_limit": float("inf")}


@dataclass
class Course:
    """What became of a run: the model before the first round and after each, the rounds, and the method's states."""

    method: FairStrategy
    models: list[FloatArray]
    rounds: list[Round] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[int, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    controls: dict[int, dict[str, FloatArray]] = field(default_factory=dict)

    @property
    def last(self) -> FloatArray:
        return self.models[-1]


def run(
    method: FairStrategy,
    clients: Mapping[str, Keeping],
    rounds: int,
    *,
    faults: Mapping[tuple[str, int], Fault] | None = None,
    before: Callable[[int, MemoryGrid], None] = lambda number, grid: None,
    after: Callable[[Round], None] = lambda finished: None,
    first: FloatArray | None = None,
    resume: Mapping[str, Any] | None = None,
    grid: MemoryGrid | None = None,
) -> Course:
    """Run a method with clients; `before` is called before each round with its number, `after` with it when it is over.

    `resume` and `first` continue a run, from a state and the model of its round.
    """
    grid = grid or MemoryGrid(dict(clients), faults=faults)
    dim = len(next(iter(clients.values())).b)
    start = np.full(dim, 3.0) if first is None else first
    course = Course(method, [start])

    def over(finished: Round) -> None:
        course.rounds.append(finished)
        course.models.append(unpack(finished.arrays)["w"])
        course.states.append(method.state_dict())
        after(finished)
        before(finished.number + 1, grid)

    before(1 if resume is None else int(resume["round"]) + 1, grid)
    method.start(grid, ArrayRecord(record({"w": start})), num_rounds=rounds, on_round=over, resume=resume)
    for name, message in grid.sent_to(MessageType.TRAIN):
        config = message.content.config_records["config"]
        number = int(str(config["server-round"]))
        course.sent.setdefault(number, {})[name] = config
        if "control" in message.content.array_records:
            there = unpack(message.content.array_records["control"])["w"]
            course.controls.setdefault(number, {})[name] = there
    return course


def row(method: FairStrategy) -> FloatArray:
    """Return the one row that a method keeps."""
    (kept,) = method.progress.kept.values()
    return np.asarray(kept.blocks[0][0] * kept.scales[0])


def used_states(method: FairStrategy, clients: Mapping[str, Keeping]) -> dict[str, FloatArray]:
    """Return each client's state as the server knows it: that after its last reply that was used."""
    rounds = method.progress.states.of(clients)
    return {name: client.state(rounds[name]) for name, client in clients.items()}

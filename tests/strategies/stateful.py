"""Runs of methods whose clients keep states between rounds: by messages, or, for long ones, without."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import MessageType

from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import NOTHING, Replies, Trained
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import FloatArray, Model
from fairbloom.strategies import FairStrategy, FedDyn
from tests.federation import Fault, MemoryGrid, record, unpack
from tests.strategies.keeping import Keeping

PLAIN: dict[str, Any] = {"fraction_evaluate": 0.0, "unused_rounds": 0, "update_limit": float("inf")}

START = 3.0
"""Every entry of the first model."""


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
    start = np.full(len(next(iter(clients.values())).b), START) if first is None else first
    course = Course(method, [start])

    def over(finished: Round) -> None:
        course.rounds.append(finished)
        course.models.append(unpack(finished.arrays)["w"])
        course.states.append(method.state_dict())
        after(finished)
        before(finished.number + 1, grid)

    before(1 if resume is None else int(resume["round"]) + 1, grid)
    method.start(grid, record({"w": start}), num_rounds=rounds, on_round=over, resume=resume)
    for name, message in grid.sent_to(MessageType.TRAIN):
        config = message.content.config_records["config"]
        number = int(str(config["server-round"]))
        course.sent.setdefault(number, {})[name] = config
        if "control" in message.content.array_records:
            there = unpack(message.content.array_records["control"])["w"]
            course.controls.setdefault(number, {})[name] = there
    return course


class Direct:
    """The clients of a round without messages; see rounds/clients.py."""

    def __init__(self, method: FairStrategy, clients: Mapping[str, Keeping]) -> None:
        self._method, self.clients = method, dict(sorted(clients.items()))
        self.joins: Mapping[str, int] = {}
        self.round = 1

    def online(self, fewest: int) -> Sequence[str]:
        return [name for name in self.clients if self.joins.get(name, 1) <= self.round]

    def free(self) -> Sequence[str]:
        return self.online(1)

    def sizes(self, names: Sequence[str]) -> Mapping[str, float]:
        return {name: float(self.clients[name].examples) for name in names}

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        refused, layout = Refusals(terms.server_round), self._method.layout_of(model)
        trained = Trained.empty(layout, refused=refused)
        for name in names:
            client, config = self.clients[name], terms.of_client(name).to_config()
            x, kept = client.trained(model["w"], config, sent["control"]["w"] if sent else None)
            report: dict[str, Any] = {"num-examples": client.examples, "step-sum": sum(client.rates), **kept}
            trained.add(name, report, {"w": x}, {})
        self.round += 1
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        return Replies(metrics={}, refused=Refusals(terms.server_round))


def rest(
    method: FairStrategy,
    clients: Mapping[str, Keeping],
    rounds: int = 200,
    *,
    joins: Mapping[str, int] | None = None,
    loses: Mapping[int, str] | None = None,
) -> FloatArray:
    """Return the model after many rounds, without messages.

    `joins` holds the first round of clients that come later, `loses` the clients that lose what they keep, by the round
    before which they do.
    """
    direct = Direct(method, clients)
    direct.joins = joins or {}
    start = {"w": np.full(len(next(iter(clients.values())).b), START)}
    loop, model = Rounds(method, direct, rounds), start
    for finished in loop.run(start, measure=lambda number: (), measure_after=()):
        model = finished.arrays
        if (number := finished.number + 1) in (loses or {}):
            clients[(loses or {})[number]].lose()
    return np.asarray(model["w"])


def row(method: FairStrategy) -> FloatArray:
    """Return the one row that a method keeps."""
    (kept,) = method.progress.kept.values()
    return np.asarray(kept.blocks[0][0])


def used_states(method: FairStrategy, clients: Mapping[str, Keeping]) -> dict[str, FloatArray]:
    """Return each client's state as the server knows it: that after its last reply that was used."""
    rounds = method.progress.states.of(clients)
    return {name: client.state(rounds[name]) for name, client in clients.items()}


def inconsistency(method: FairStrategy, clients: Mapping[str, Keeping]) -> float:
    """Return how far what the clients keep and what the server keeps are from agreeing.

    Of FedDyn that is Σ h_k − alpha R; else Σ n_k (c − c_k) / Σ n_k over all clients that the server has known, where
    those never used have c_k = 0.
    """
    states, kept = used_states(method, clients), row(method) if method.progress.kept else np.zeros(1)
    if isinstance(method, FedDyn):
        return float(np.abs(sum(states.values()) - method.alpha * kept).max())
    n = {name: size if method.weighting == "examples" else 1.0 for name, size in method.progress.roster.items()}
    total = sum(n.values())
    return float(np.abs(sum(n[name] * (kept / total - states[name]) for name in n) / total).max())


class Joining:
    """Clients of which some come online only later."""

    def __init__(self, clients: Mapping[str, Keeping], rounds: Mapping[str, int]) -> None:
        self.grid = MemoryGrid({name: client for name, client in clients.items() if name not in rounds})
        self.grid.clients = clients
        self._rounds = rounds

    def __call__(self, number: int, grid: MemoryGrid) -> None:
        for name, joins in self._rounds.items():
            if joins == number and name not in grid.nodes.values():
                grid.nodes[1000 + sum(map(ord, name))] = name

"""The engine `workers`: a round's clients on several processes with one thread each.

Each client computes as it does in the loop, to the same bits. When a worker ends in mid-round, killed as memory runs
short, another one does what it had left. A client that was being computed when two workers ended is refused.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fairbloom.client.local import Metrics
from fairbloom.client.plan import epochs_in_time, global_work, own_works
from fairbloom.client.rules.registry import kinds_of, rules_of
from fairbloom.client.states import Made
from fairbloom.client.work import LocalWork
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import TRAIN_LOSS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import NOTHING, Replies, Trained, layout_of_second
from fairbloom.rounds.memory import Memory
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import Model, Updates, Vectors

from ..clients import LocalClients, Reply, answer_of, refuse_failed
from .balance import balance
from .dispatch import Dispatch
from .pipes import Call, ClientTask, Pipes, SharedBuffers
from .processes import can_fork


class WorkerClients(LocalClients):
    """All clients of a run, several at a time in forked processes, each as it would be computed by itself."""

    def __init__(self, method: Method, settings: Mapping[str, Any], workers: int) -> None:
        super().__init__(method, settings)
        if not can_fork():
            raise FairbloomError(
                "engine = 'workers': forked processes cannot compute on this platform: set engine = loop"
            )
        if self.device.type != "cpu":
            raise FairbloomError(
                f"engine = 'workers': its processes compute on the CPU, and device is {self.device.type}: set "
                "device = cpu, or engine = auto"
            )
        self.processes = workers
        self._pipes: Pipes | None = None
        self._seen: tuple[RunSettings, frozenset[str]] = (self.settings, frozenset())

    def close(self) -> None:
        """End the workers; a later call starts others."""
        if self._pipes is not None:
            self._pipes.end()

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        self.begin(names, terms)
        trained = self._room(names, model, terms)
        replies = self._replies(Call("train", model, terms, sent=dict(sent)), names, trained.refused)
        for name, reply in replies.items():
            made = {kept: Made(self.on_device(arrays), origin) for kept, (origin, arrays) in (reply.made or {}).items()}
            self.states(name).keep(terms.server_round, made)
        self.hand_over(trained, replies)
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; only `participants` measure what the terms ask for."""
        self.begin(names, terms)
        call = Call("evaluate", model, terms, frozenset(participants))
        refused, reports = Refusals(terms.server_round), dict[str, Metrics]()
        at_once = self._at_once(call, names)
        for start in range(0, len(names), at_once):
            replies = self._replies(call, names[start : start + at_once], refused)
            reports |= {name: reply.metrics for name, reply in replies.items()}
        return self.evaluated(reports, refused)

    def _replies(self, call: Call, names: Sequence[str], refused: Refusals) -> dict[str, Reply]:
        """Return what workers compute of these clients, in the order of names; those that fail are refused."""
        cost, training = self._cost(call), call.work == "train"
        kinds = kinds_of(call.terms, self.settings.client_rule)

        def prepare(row: int, name: str) -> tuple[ClientTask, float]:
            states, terms = self.states(name), call.terms.of_client(name)
            found = {rule.keeps: rule.kept_version(states, terms, training=training) for rule in kinds}
            kept = {name: version for name, version in found.items() if version is not None}
            return ClientTask(name, row, kept), cost(name)

        prepared = refuse_failed({name: answer_of(prepare, row, name) for row, name in enumerate(names)}, refused)
        clients, costs = [client for client, _ in prepared.values()], [needed for _, needed in prepared.values()]

        def on_answers(answered: int) -> None:
            if training:
                self.on_trained(answered, len(names))

        lists = [[clients[place] for place in places] for places in balance(costs, self.processes)]
        answers = Dispatch(self._pipes_of(call, clients), call, on_answers).answers(lists)
        return refuse_failed({name: answers[name] for name in prepared}, refused)

    def _room(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Return room in the shared memory, which the next training uses again.

        Copy old updates that the method keeps.
        """
        layout, record = self.method.layout_of(model), self.method.second
        self._spare_kept()
        buffers = self._pipes_for(model, len(names)).buffers
        second = None
        if buffers.second is not None:
            second = Updates(layout_of_second(layout, record), len(names), buffers.second.matrix, of=record)
        updates = Updates(layout, len(names), buffers.updates.matrix)
        refused = Refusals(terms.server_round)
        return Trained(metrics={}, refused=refused, updates=updates, second=second, hostile=self._hostile)

    def _at_once(self, call: Call, names: Sequence[str]) -> int:
        """Return how many clients can evaluate in one call: their personal models are in memory meanwhile."""
        trained = None if self._pipes is None else self._pipes.buffers.rows
        return max(1, len(names) if trained is None or not call.terms.has_personal_models else trained)

    def _cost(self, call: Call) -> Callable[[str], float]:
        """Return the function that says with how many examples a client computes, which its time grows with."""
        terms, settings = call.terms, self.settings
        rules = cache(lambda: rules_of(settings, terms))
        work = cache(lambda: (global_work(settings, terms, rules()), *own_works(settings, terms, rules())))

        def trained(name: str) -> int:
            local, (on_global, *own) = self.local(name), work()
            in_full = on_global.in_full
            epochs = on_global.epochs if in_full else epochs_in_time(settings, terms.server_round, local.key)
            count = len(local.splits.train)
            own_examples = sum(examples_met(count, each, each.epochs) for each in own)
            return 1 + examples_met(count, on_global, epochs) + own_examples

        def evaluated(name: str) -> int:
            splits = self.local(name).splits
            trained_on = len(splits.train) if TRAIN_LOSS in terms.measure and call.asks(name) else 0
            held_out = len(splits.test) + len(splits.validation or ())
            return 1 + (1 + terms.has_personal_models) * held_out + trained_on

        return trained if call.work == "train" else evaluated

    def _pipes_of(self, call: Call, clients: Sequence[ClientTask]) -> Pipes:
        """Return the way to workers that were forked when this process had these clients' data already."""
        settings, seen = self._seen
        if settings is not self.settings or not all(client.name in seen for client in clients):
            self.close()
            self._seen = self.settings, frozenset(self._locals)
        return self._pipes_for(call.model, min(1, len(clients)))

    # Memory -----------------------------------------------------------------------------------------------------------

    def _pipes_for(self, model: Model, rows: int) -> Pipes:
        """Return the way to workers that share enough memory: others, where these do not."""
        if self._pipes is None or not self._pipes.buffers.fit(model, rows):
            self.close()
            layout = self.method.layout_of(model)
            memory, second = Memory(self.settings.memory), self.method.second
            buffers = SharedBuffers(layout, rows, self.processes, memory, second=second)
            self._pipes = Pipes(buffers, self.local)
        return self._pipes

    def _spare_kept(self) -> None:
        """Let the method have old updates that it keeps for itself, before the next ones are written to their rows."""
        if self._pipes is None:
            return
        kept, buffers = self.method.progress.kept, self._pipes.buffers
        matrices = [each.matrix for each in (buffers.updates, buffers.second) if each is not None]
        old = {key: row.blocks[0][:] for key, row in kept.items()}
        lying = [key for key in kept if any(np.may_share_memory(old[key], matrix) for matrix in matrices)]
        if lying and isinstance(matrices[0], np.memmap):  # they may be more than there is memory: they keep their file
            self.close()
            self._pipes = None
            return
        for key in lying:
            kept[key] = Vectors((np.array(old[key]),), kept[key].scales)


def examples_met(count: int, work: LocalWork, epochs: int) -> int:
    """Return how many examples the steps of a client with `count` of them take, short batches counted as whole ones."""
    batch = max(1, min(work.batch_size or count, count))
    steps = epochs * math.ceil(count / batch) if work.steps is None else work.steps
    return steps * batch

"""Clients on several workers at a time: who computes which, and what becomes of the clients of a lost worker.

Workers keep data, and nothing else that matters: models go there with each call and come back with its answers. So what
a lost worker has not answered is computed again, to the same numbers. A transport says how workers are reached: through
pipes to forked processes, or as actors on a Ray cluster.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from fairbloom.client.local import Metrics
from fairbloom.client.rules.registry import kinds_of
from fairbloom.client.states import ClientStates, Made, Version
from fairbloom.logs import log
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import NOTHING, Replies, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import Model
from fairbloom.tasks.models import arrays_of

from ..clients import LocalClients, PackedStates, Reply, answer_of, refuse_failed

Work = Literal["train", "evaluate", "count"]
"""What clients do: train, evaluate, or count their training examples."""


class Call(NamedTuple):
    """What all tasks of a call have in common.

    `participants` are, in an evaluation, the clients that measure what the terms ask for. In a training, the models go
    into `trained`, and each client is `sent` vectors, by record.
    """

    work: Work
    method: Method
    model: Model
    terms: Terms
    participants: Collection[str] = frozenset()
    trained: Trained | None = None
    sent: Mapping[str, Model] = {}

    def asks(self, name: str) -> bool:
        """Return whether a client measures what the terms ask to measure."""
        return self.work == "train" or name in self.participants


class ClientTask(NamedTuple):
    """A client to compute: its row in the matrices of the call, and the kept states that it goes on from, by name."""

    name: str
    row: int
    states: Mapping[str, Version] = MappingProxyType({})


Starts = Mapping[str, tuple[int, Model]]
"""What a client goes on from of what it keeps between rounds, as arrays by name, with the round that made it."""


def pack_starts(states: Mapping[str, Version]) -> Starts:
    """Return what a client goes on from, as it is handed to a worker."""
    return {name: (version.made, arrays_of(version.state)) for name, version in states.items()}


def pack_made(states: ClientStates, number: int) -> PackedStates:
    """Return what a client has kept in round `number`, as a worker hands it back."""
    return {name: (made.origin, arrays_of(made.state)) for name, made in states.made_in(number).items()}


@dataclass(eq=False)
class ScheduledTask:
    """Clients that one worker computes, together where it stacks them.

    `losses` counts the workers that ended meanwhile.
    """

    clients: Sequence[ClientTask]
    losses: int = 0

    def __str__(self) -> str:
        few = len(self.clients) == 1
        return f"client {self.clients[0].name}" if few else f"a shard of {len(self.clients)} clients"


Answers = dict[str, Reply | str]
"""What clients reply, each with its row in the matrices of the call, or why they cannot, by name."""


class Lost(NamedTuple):
    """How a worker ended, and the row of the client that it was computing; None: unknown."""

    how: str
    row: int | None


class Transport(Protocol):
    """How tasks reach workers, which have numbers from 0, and how answers come back."""

    def begin(self, call: Call) -> None:
        """Let all workers know what the tasks to come have in common."""

    def send(self, call: Call, worker: int, tasks: Sequence[ScheduledTask]) -> None:
        """Give a worker tasks to do in this order; where there is no such worker, start it."""

    def receive(self, call: Call, workers: Collection[int]) -> tuple[int, Answers | Lost]:
        """Wait for one of these workers; return which it is, and what it has computed or that it has ended."""

    def end(self) -> None:
        """End all workers and forget what they are computing; `send` starts others."""


class Dispatch:
    """The tasks of one call, until all are answered; `on_answers` is called with how many are, whenever some are."""

    def __init__(
        self, transport: Transport, call: Call, on_answers: Callable[[int], None] = lambda answered: None
    ) -> None:
        self._transport, self._call, self._on_answers = transport, call, on_answers
        self._waiting: dict[int, list[ScheduledTask]] = {}
        self._answers: Answers = {}

    def answers(self, lists: Sequence[Sequence[ScheduledTask]]) -> Answers:
        """Let each worker do its list of tasks; return the answer of every client."""
        try:
            self._transport.begin(self._call)
            for worker, tasks in enumerate(lists):
                self._send(worker, tasks)
            while self._waiting:
                worker, said = self._transport.receive(self._call, self._waiting)
                if isinstance(said, Lost):
                    self._replace(worker, said)
                else:
                    self._note(worker, said)
        except BaseException:  # Ctrl-C too: what is still on its way answers no later call
            self._transport.end()
            raise
        return self._answers

    def _send(self, worker: int, tasks: Sequence[ScheduledTask]) -> None:
        if tasks:
            self._waiting[worker] = list(tasks)
            self._transport.send(self._call, worker, tasks)

    def _note(self, worker: int, answers: Answers) -> None:
        """Note what a worker has computed; a task is done when its clients are answered."""
        self._answers |= answers
        self._on_answers(len(self._answers))
        left = [task for task in self._waiting.pop(worker) if task.clients[0].name not in answers]
        if left:
            self._waiting[worker] = left

    def _replace(self, worker: int, lost: Lost) -> None:
        """Let a new worker do what one that has ended had left, the task that it was doing last."""
        left = self._waiting.pop(worker)
        suspect = next((task for task in left if lost.row in [client.row for client in task.clients]), left[0])
        suspect.losses += 1
        if suspect.losses < 2:  # a client that ends two workers is refused
            again, then = [suspect], "is computed again"
        elif len(suspect.clients) > 1:
            again = [ScheduledTask([client], suspect.losses) for client in suspect.clients]
            then = "is computed again, client by client"
        else:
            again, then = [], "is refused"
            reason = f"computing it has ended {suspect.losses} workers ({lost.how})"
            self._answers[suspect.clients[0].name] = reason
        log.warning("a worker ended (%s) before it had computed %s, which %s", lost.how, suspect, then)
        self._send(worker, [*(task for task in left if task is not suspect), *again])


class DispatchedClients(LocalClients):
    """All clients of a run, on several workers at a time; the numbers are those of one worker.

    When a worker ends in mid-round, killed as memory runs short, another one does what it had left. A client that was
    being computed when two workers ended is refused; where several are computed together, each is computed by itself
    before that.
    """

    def train(self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING) -> Trained:
        """Let these clients train the model on the terms, each on its own data."""
        self.begin(names, terms)
        trained = self._room(names, model, terms)
        call = Call("train", self.method, model, terms, trained=trained, sent=dict(sent))
        replies = self._replies(call, names, trained.refused)
        for name, reply in replies.items():
            made = {kept: Made(self.on_device(arrays), origin) for kept, (origin, arrays) in (reply.made or {}).items()}
            self.states(name).keep(terms.server_round, made)
        self.hand_over(trained, replies)
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; only `participants` measure what the terms ask for."""
        self.begin(names, terms)
        call = Call("evaluate", self.method, model, terms, frozenset(participants))
        refused, reports = Refusals(terms.server_round), dict[str, Metrics]()
        at_once = self._at_once(call, names)
        for start in range(0, len(names), at_once):
            replies = self._replies(call, names[start : start + at_once], refused)
            reports |= {name: reply.metrics for name, reply in replies.items()}
        return self.evaluated(reports, refused)

    def _replies(self, call: Call, names: Sequence[str], refused: Refusals) -> dict[str, Reply]:
        """Return what workers compute of these clients, in the order of names; those that fail are refused."""
        cost, training = self._cost(call, names), call.work == "train"
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

        answers = Dispatch(self._transport(call, clients), call, on_answers).answers(self._lists(clients, costs))
        return refuse_failed({name: answers[name] for name in prepared}, refused)

    # Each transport's -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _room(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Return room for the models that these clients train, a row each."""

    @abstractmethod
    def _cost(self, call: Call, names: Sequence[str]) -> Callable[[str], float]:
        """Return the function that says how long one of these clients takes, in any unit."""

    @abstractmethod
    def _transport(self, call: Call, clients: Sequence[ClientTask]) -> Transport:
        """Return the way to workers that can compute these clients."""

    @abstractmethod
    def _lists(self, clients: Sequence[ClientTask], costs: Sequence[float]) -> list[list[ScheduledTask]]:
        """Return the tasks of each worker, from what each client costs."""

    def _at_once(self, call: Call, names: Sequence[str]) -> int:
        return max(1, len(names))

"""Clients on several workers at a time: who computes which, and what becomes of the clients of a lost worker.

Workers keep data, and nothing else that matters: models go there with each call and come back with its answers. So what
a lost worker has not answered is computed again, to the same numbers. A transport says how workers are reached: through
pipes to forked processes, or as actors on a Ray cluster.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, Self

from fairbloom.client.personal import StateDict
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import Model

from ..clients import LocalClients, Reply, in_words

log = logging.getLogger("flwr").getChild("fairbloom")

LOSSES = 2
"""A client is refused when so many workers have ended while they computed it."""

Work = Literal["train", "evaluate", "count"]
"""What clients do: train, evaluate, or count their training examples."""


class Call(NamedTuple):
    """What all tasks of a call have in common.

    Attributes
    ----------
    work
        What the clients do.
    method
        The run's method, which says what it needs of clients.
    model
        The global model.
    terms
        The terms of the clients' work.
    participants
        In an evaluation, those that measure what the terms ask to measure.
    trained
        In a training, where the trained models are to lie.
    """

    work: Work
    method: Method
    model: Model
    terms: Terms
    participants: Collection[str] = frozenset()
    trained: Trained | None = None

    @property
    def personal(self) -> bool:
        """Whether the clients need their personal models."""
        return self.terms.personal_lambda is not None and self.work != "count"

    def asks(self, name: str) -> bool:
        """Return whether a client measures what the terms ask to measure."""
        return self.work == "train" or name in self.participants


def last_round(work: Work, terms: Terms) -> int:
    """Return the last round whose personal models matter to clients: training, that before; evaluating, this one."""
    return terms.server_round - (work == "train")


@dataclass(eq=False)
class ScheduledTask:
    """Clients that one worker is to compute.

    Attributes
    ----------
    rows
        The row of each client in the matrices of the call, by its name.
    personal
        The last personal models of those that have one, where they need it.
    losses
        How many workers have ended while they computed these clients.
    """

    rows: dict[str, int]
    personal: dict[str, StateDict] = field(default_factory=dict)
    losses: int = 0

    @classmethod
    def joined(cls, tasks: Iterable[Self]) -> Self:
        """Return the clients of several tasks as one."""
        whole = cls({})
        for task in tasks:
            whole.rows |= task.rows
            whole.personal |= task.personal
        return whole

    def split(self) -> list["ScheduledTask"]:
        """Return a task for each client."""
        personal = {name: {name: model} for name, model in self.personal.items()}
        return [ScheduledTask({name: row}, personal.get(name, {}), self.losses) for name, row in self.rows.items()]

    def __str__(self) -> str:
        return f"client {next(iter(self.rows))}" if len(self.rows) == 1 else f"a shard of {len(self.rows)} clients"


class Answer(NamedTuple):
    """What a worker has computed of a client.

    Attributes
    ----------
    reply
        The client's reply; its flat model lies in its row of the call's matrices.
    personal
        The personal model that its training has made.
    """

    reply: Reply
    personal: StateDict | None = None


Answers = dict[str, Answer | str]
"""What was computed of clients, or why it could not be, by name."""


class Lost(NamedTuple):
    """What is known of a worker that has ended.

    Attributes
    ----------
    how
        How it ended, in words.
    row
        The row of a client that it was computing; None: nobody knows which.
    """

    how: str
    row: int | None


class Transport(Protocol):
    """How tasks reach workers, which have numbers from 0, and how answers come back."""

    def begin(self, call: Call) -> None:
        """Let all workers know what the tasks to come have in common."""

    def send(self, worker: int, tasks: Sequence[ScheduledTask]) -> None:
        """Give a worker tasks to do in this order; where there is no such worker, start it."""

    def receive(self, workers: Collection[int]) -> tuple[int, Answers | Lost]:
        """Wait for one of these workers; return which it is, and what it has computed or that it has ended."""

    def end(self) -> None:
        """End all workers and forget what they are computing; `send` starts others."""


class Dispatch:
    """The tasks of one call, from when workers are given them until all are answered.

    Parameters
    ----------
    transport
        How workers are reached.
    call
        What the tasks have in common.
    """

    def __init__(self, transport: Transport, call: Call) -> None:
        self._transport, self._call = transport, call
        self._waiting: dict[int, list[ScheduledTask]] = {}
        self._answers: Answers = {}

    def answers(self, lists: Sequence[Sequence[ScheduledTask]]) -> Answers:
        """Let each worker do its list of tasks; return what came of every client."""
        try:
            self._transport.begin(self._call)
            for worker, tasks in enumerate(lists):
                self._send(worker, tasks)
            while self._waiting:
                worker, said = self._transport.receive(self._waiting)
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
            self._transport.send(worker, tasks)

    def _note(self, worker: int, answers: Answers) -> None:
        """Note what a worker has computed; a task is done when its clients are answered."""
        self._answers |= answers
        left = [task for task in self._waiting.pop(worker) if next(iter(task.rows)) not in answers]
        if left:
            self._waiting[worker] = left

    def _replace(self, worker: int, lost: Lost) -> None:
        """Let a new worker do what one that has ended had left, the task that it was doing last."""
        left = self._waiting.pop(worker)
        suspect = next((task for task in left if lost.row in task.rows.values()), left[0])
        suspect.losses += 1
        if suspect.losses < LOSSES:
            again, then = [suspect], "is computed again"
        elif len(suspect.rows) > 1:
            again, then = suspect.split(), "is computed again, client by client"
        else:
            again, then = [], "is refused"
            self._answers |= dict.fromkeys(
                suspect.rows, f"computing it has ended {suspect.losses} workers ({lost.how})"
            )
        log.warning("a worker ended (%s) before it had computed %s, which %s", lost.how, suspect, then)
        self._send(worker, [*(task for task in left if task is not suspect), *again])


class DispatchedClients(LocalClients):
    """All clients of a run, on several workers at a time; the numbers are those of one worker.

    When a worker ends in mid-round, killed as memory runs short, another one does what it had left. A client that was
    being computed when two workers ended is refused; where several are computed together, each is computed by itself
    before that.
    """

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data.

        Raises
        ------
        FairbloomError
            When no worker can be started.
        """
        self.begin(names, terms)
        trained = self._room(names, model, terms)
        call = Call("train", self.method, model, terms, trained=trained)
        answers = self._answers(call, names, trained.refused)
        for name, answer in answers.items():
            if answer.personal is not None:
                self.personal(name).keep(terms.server_round, answer.personal)
        self.hand_over(trained, {name: answer.reply for name, answer in answers.items()})
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure.

        Raises
        ------
        FairbloomError
            As `train` does.
        """
        self.begin(names, terms)
        call = Call("evaluate", self.method, model, terms, frozenset(participants))
        refused, answers, at_once = Refusals(terms.server_round), dict[str, Answer](), self._at_once(call, names)
        for start in range(0, len(names), at_once):
            answers |= self._answers(call, names[start : start + at_once], refused)
        return self.evaluated({name: answer.reply.metrics for name, answer in answers.items()}, refused)

    def _answers(self, call: Call, names: Sequence[str], refused: Refusals) -> dict[str, Answer]:
        """Return what workers compute of these clients, in the order of names; those that fail are refused."""
        cost, tasks, costs = self._cost(call, names), list[ScheduledTask](), list[float]()
        for row, name in enumerate(names):
            try:
                needed, number = cost(name), last_round(call.work, call.terms) + 1
                last = self.personal(name).before(number) if call.personal else None
            except Exception as error:  # one client's failure is one refused reply, whatever it is
                refused.add(name, in_words(error))
                continue
            tasks.append(ScheduledTask({name: row}, {} if last is None else {name: last}))
            costs.append(needed)
        answers = Dispatch(self._transport(tasks), call).answers(self._lists(tasks, costs))
        found: dict[str, Answer] = {}
        for name in names:
            answer = answers.get(name)
            if isinstance(answer, Answer):
                found[name] = answer
            elif answer is not None:
                refused.add(name, answer)
        return found

    # Each transport's -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _room(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Return room for the models that these clients train, a row each."""

    @abstractmethod
    def _cost(self, call: Call, names: Sequence[str]) -> Callable[[str], float]:
        """Return the function that says how long one of these clients takes, in any unit."""

    @abstractmethod
    def _transport(self, tasks: Sequence[ScheduledTask]) -> Transport:
        """Return the way to workers that can do these tasks."""

    @abstractmethod
    def _lists(self, tasks: Sequence[ScheduledTask], costs: Sequence[float]) -> list[list[ScheduledTask]]:
        """Return what each worker is to do, of tasks of one client each."""

    def _at_once(self, call: Call, names: Sequence[str]) -> int:
        """Return how many of these clients can evaluate in one call."""
        return max(1, len(names))

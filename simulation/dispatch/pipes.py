"""Forked processes as workers: models are handed over in shared memory, and all else through pipes.

They are forked, so that they have the task, the data and the model of this process, also those of a notebook, in the
same memory.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import torch

from fairbloom.client.local import LocalClient
from fairbloom.client.states import ClientStates, StateDict, Version
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import layout_of_second
from fairbloom.rounds.memory import Memory
from fairbloom.rounds.updates import Layout, Model, Updates
from fairbloom.tasks.models import arrays_of

from ..clients import PackedStates, Reply, answer_of, store_reply
from .processes import Forked, shared_array

Work = Literal["train", "evaluate"]
"""What clients do."""

REPORT_SECONDS = 0.1
"""A worker hands over what it has so often, so that little is lost when it is killed."""

NO_ROW = -1


class Call(NamedTuple):
    """What all clients of a call have in common.

    `participants` are, in an evaluation, the clients that measure what the terms ask for. In a training, each client is
    `sent` vectors, by record.
    """

    work: Work
    model: Model
    terms: Terms
    participants: Collection[str] = frozenset()
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

Answers = dict[str, Reply | str]
"""What clients reply, each with its row in the matrices of the call, or why they cannot, by name."""


class Lost(NamedTuple):
    """How a worker ended, and the row of the client that it was computing; None: unknown."""

    how: str
    row: int | None


class SharedBuffers:
    """The memory in which this process and its workers hand models over.

    It holds the model that clients get, up to `rows` trained models and second ones, and the row that each worker
    computes.
    """

    def __init__(self, layout: Layout, rows: int, workers: int, memory: Memory, *, second: str) -> None:
        def updates(layout: Layout) -> Updates:
            matrix = memory.matrix(rows, layout.size, layout.dtype, of=2 if second else 1)
            in_file = isinstance(matrix, np.memmap)
            return Updates(layout, rows, matrix if in_file else shared_array(matrix.shape, matrix.dtype))

        arrays = layout.arrays
        self.rows = rows
        self.received = {name: shared_array(array.shape, array.dtype) for name, array in arrays.items()}
        self.updates = updates(layout)
        self.second = updates(layout_of_second(layout, second)) if second else None
        self.computed = shared_array((workers,), np.int64)

    def fit(self, model: Model, rows: int) -> bool:
        """Return whether there is room for `rows` clients with such models."""
        wanted, have = ([(n, a.shape, a.dtype) for n, a in arrays.items()] for arrays in (model, self.received))
        return wanted == have and rows <= self.rows


class Wanted(NamedTuple):
    """A worker's request for what its next client goes on from."""

    name: str


class Pipes:
    """The way to forked processes and back; `find_client` returns a client by its name, in a worker."""

    def __init__(self, buffers: SharedBuffers, find_client: Callable[[str], LocalClient]) -> None:
        self.buffers = buffers
        self.processes: dict[int, Forked] = {}
        self._states: dict[int, dict[str, Mapping[str, Version]]] = {}
        self._find_client = find_client

    def begin(self, call: Call) -> None:
        """Hand the model over."""
        for name, array in call.model.items():
            self.buffers.received[name][...] = array

    def send(self, call: Call, worker: int, tasks: Sequence[ClientTask]) -> None:
        """Give a worker its clients, all at once; it asks for what each keeps between rounds, one after the other."""
        self._states[worker] = {task.name: task.states for task in tasks}
        clients = [(task.name, task.row, bool(task.states), call.asks(task.name)) for task in tasks]
        self.buffers.computed[worker] = NO_ROW
        if worker not in self.processes:
            self.processes[worker] = Forked(lambda pipe: self._serve(worker, pipe), self.processes.values())
        with contextlib.suppress(OSError):  # it has ended, which shows when its answer is waited for
            self.processes[worker].pipe.send((call.work, call.terms, call.sent, clients))

    def receive(self, workers: Collection[int]) -> tuple[int, Answers | Lost]:
        """Wait for one of these workers; return which it is, and what it has computed since, or that it has ended."""
        while True:
            (ready, *_) = wait([self.processes[worker].pipe for worker in workers])
            worker = next(worker for worker in workers if self.processes[worker].pipe is ready)
            pipe = self.processes[worker].pipe
            try:
                said: Answers | Wanted | str = pipe.recv()
                if isinstance(said, Wanted):
                    pipe.send(pack_starts(self._states[worker].pop(said.name)))
                    continue
            except (EOFError, OSError):
                row = int(self.buffers.computed[worker])
                return worker, Lost(self.processes.pop(worker).end(), None if row == NO_ROW else row)
            if isinstance(said, str):
                raise FairbloomError(
                    f"engine = 'workers': a process that is forked here cannot train ({said}): set engine = loop, or "
                    "hide the graphics card from a new process by CUDA_VISIBLE_DEVICES="
                )
            return worker, said

    def end(self) -> None:
        """End the workers; later tasks start others."""
        while self.processes:
            self.processes.popitem()[1].end()

    # In a worker ------------------------------------------------------------------------------------------------------

    def _serve(self, worker: int, pipe: Connection) -> None:
        torch.set_num_threads(1)
        try:
            torch.autograd.backward(torch.ones(1, requires_grad=True))
        except RuntimeError as error:  # PyTorch forbids it where the parent has trained with a graphics card in sight
            pipe.send(str(error))
            return
        received = tensors_of(self.buffers.received)
        while True:
            work, terms, sent, clients = pipe.recv()
            vectors = {record: tensors_of(arrays) for record, arrays in sent.items()}
            plain, answers, since = replace(terms, measure=()), Answers(), time.monotonic()
            for name, row, has_states, measures in clients:
                self.buffers.computed[worker] = row
                kept = self._ask(pipe, name) if has_states else {}
                asked = (terms if measures else plain).of_client(name)
                answers[name] = answer_of(self._compute, work, received, asked, vectors, name, row, kept)
                if time.monotonic() - since > REPORT_SECONDS:
                    pipe.send(answers)
                    answers, since = Answers(), time.monotonic()
            if answers:
                pipe.send(answers)

    def _ask(self, pipe: Connection, name: str) -> dict[str, dict[int, StateDict]]:
        """Ask for what a client keeps between rounds; return what it goes on from, by name and round."""
        pipe.send(Wanted(name))
        starts: Starts = pipe.recv()
        return {kept: {made: tensors_of(arrays)} for kept, (made, arrays) in starts.items()}

    def _compute(
        self,
        work: Work,
        received: StateDict,
        terms: Terms,
        vectors: Mapping[str, StateDict],
        name: str,
        row: int,
        kept: Mapping[str, Mapping[int, StateDict]],
    ) -> Reply:
        """Compute a client, which goes on from what it has kept; leave its models in the shared memory."""
        local = replace(self._find_client(name), states=ClientStates(None, kept))
        if work == "evaluate":
            return Reply(row, local.evaluate(received, terms), {}, {})
        reply = store_reply(self.buffers.updates, self.buffers.second, row, local.train(received, terms, vectors))
        return reply._replace(made=pack_made(local.states, terms.server_round))


def pack_starts(states: Mapping[str, Version]) -> Starts:
    """Return what a client goes on from, as it is handed to a worker."""
    return {name: (version.made, arrays_of(version.state)) for name, version in states.items()}


def pack_made(states: ClientStates, number: int) -> PackedStates:
    """Return what a client has kept in round `number`, as a worker hands it back."""
    return {name: (made.origin, arrays_of(made.state)) for name, made in states.made_in(number).items()}


def tensors_of(arrays: Model) -> StateDict:
    """Return arrays as tensors, which share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

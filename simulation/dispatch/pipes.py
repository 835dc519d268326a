"""Forked processes as workers: models are handed over in shared memory, and all else through pipes.

They are forked, so that they have the task, the data and the model of this process, also those of a notebook, in the
same memory.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import numpy as np
import torch

from fairbloom.client.local import LocalClient
from fairbloom.client.personal import PersonalModels, StateDict
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.memory import Memory
from fairbloom.rounds.updates import Layout, Model, Updates

from ..clients import Reply, in_words, written
from .dispatch import Answer, Answers, Call, Lost, ScheduledTask, Work, last_round
from .processes import Forked, shared_array

REPORT_SECONDS = 0.1
"""A worker hands over what it has so often, so that little is lost when it is killed."""

NOBODY = -1


class ClientTask(NamedTuple):
    """What a worker is given of a client through its pipe.

    Attributes
    ----------
    name
        The client's name.
    row
        Its row in the shared memory.
    has_personal
        Whether its last personal model lies in that row.
    measures
        Whether it measures what the terms ask to measure.
    """

    name: str
    row: int
    has_personal: bool
    measures: bool


class SharedBuffers:
    """The memory in which this process and its workers hand models over.

    Attributes
    ----------
    received
        The arrays of the model that clients get.
    updates, snapshots
        The rows that trained models are written to, and those in the midst of the work, where they are wanted.
    personal
        The arrays of personal models, one below the other, where clients have some.
    computed
        The row of the client that each worker is computing.

    Parameters
    ----------
    layout
        The arrays of the model.
    rows
        The most clients whose models lie here at a time.
    workers
        How many processes compute.
    memory
        How much of it updates may take before they lie in a file, which processes share as well.
    snapshots, personal
        Whether there are such models.
    """

    def __init__(
        self, layout: Layout, rows: int, workers: int, memory: Memory, *, snapshots: bool, personal: bool
    ) -> None:
        def updates() -> Updates:
            matrix = memory.matrix(rows, layout.size, layout.dtype, of=1 + snapshots)
            in_file = isinstance(matrix, np.memmap)
            return Updates(layout, rows, matrix if in_file else shared_array(matrix.shape, matrix.dtype))

        arrays = layout.arrays
        self.rows = rows
        self.received = {name: shared_array(array.shape, array.dtype) for name, array in arrays.items()}
        self.updates, self.snapshots = updates(), updates() if snapshots else None
        below = {name: shared_array((rows, *array.shape), array.dtype) for name, array in arrays.items() if personal}
        self.personal = {name: torch.from_numpy(array) for name, array in below.items()}
        self.computed = shared_array((workers,), np.int64)

    def fit(self, model: Model, rows: int, *, personal: bool) -> bool:
        """Return whether there is room for so many clients with such models."""
        wanted, have = ([(n, a.shape, a.dtype) for n, a in arrays.items()] for arrays in (model, self.received))
        return wanted == have and rows <= self.rows and (not personal or bool(self.personal))

    def load_personal(self, row: int, model: StateDict) -> None:
        """Write a personal model into its row."""
        for name, tensor in model.items():
            self.personal[name][row].copy_(tensor)

    def personal_of(self, row: int) -> StateDict:
        """Return the personal model of a row, in its memory."""
        return {name: tensor[row] for name, tensor in self.personal.items()}


class Pipes:
    """The way to forked processes and back.

    Parameters
    ----------
    buffers
        Where models are handed over.
    find_client
        Returns a client by its name, in a worker.
    """

    def __init__(self, buffers: SharedBuffers, find_client: Callable[[str], LocalClient]) -> None:
        self.buffers = buffers
        self.processes: dict[int, Forked] = {}
        self._find_client = find_client
        self._call: Call

    def begin(self, call: Call) -> None:
        """Hand the model over."""
        self._call = call
        for name, array in call.model.items():
            self.buffers.received[name][...] = array

    def send(self, worker: int, tasks: Sequence[ScheduledTask]) -> None:
        """Give a worker its clients, all at once: it does not wait for this process between them."""
        clients: list[ClientTask] = []
        for task in tasks:
            for name, row in task.rows.items():
                if name in task.personal:  # again after a loss: the worker may have written to its row
                    self.buffers.load_personal(row, task.personal[name])
                clients.append(ClientTask(name, row, name in task.personal, self._call.asks(name)))
        self.buffers.computed[worker] = NOBODY
        if worker not in self.processes:
            computing = PipeWorker(worker, self.buffers, self._find_client)
            self.processes[worker] = Forked(computing.serve, self.processes.values())
        with contextlib.suppress(OSError):  # it has ended, which shows when its answer is waited for
            self.processes[worker].pipe.send((self._call.work, self._call.terms, clients))

    def receive(self, workers: Collection[int]) -> tuple[int, Answers | Lost]:
        """Return what a worker has computed since it last said so.

        Raises
        ------
        FairbloomError
            When forked processes can compute nothing here.
        """
        (ready, *_) = wait([self.processes[worker].pipe for worker in workers])
        worker = next(worker for worker in workers if self.processes[worker].pipe is ready)
        try:
            said: dict[str, Reply | str] | str = self.processes[worker].pipe.recv()
        except (EOFError, OSError):
            row = int(self.buffers.computed[worker])
            return worker, Lost(self.processes.pop(worker).end(), None if row == NOBODY else row)
        if isinstance(said, str):
            raise FairbloomError(
                f"engine = 'workers': a process that is forked here cannot train ({said}): set engine = loop, or hide "
                "the graphics card from a new process by CUDA_VISIBLE_DEVICES="
            )
        makes_personal = self._call.personal and self._call.work == "train"
        answers: Answers = {}
        for name, reply in said.items():
            if isinstance(reply, Reply):
                answers[name] = Answer(reply, self.buffers.personal_of(reply.row) if makes_personal else None)
            else:
                answers[name] = reply
        return worker, answers

    def end(self) -> None:
        """End the workers; later tasks start others."""
        while self.processes:
            self.processes.popitem()[1].end()


class PipeWorker:
    """What a forked process does: it computes clients one after the other.

    Parameters
    ----------
    number
        The worker's number.
    buffers
        Where models are handed over.
    find_client
        Returns a client by its name.
    """

    def __init__(self, number: int, buffers: SharedBuffers, find_client: Callable[[str], LocalClient]) -> None:
        self._number, self._buffers, self._find_client = number, buffers, find_client
        self._received = {name: torch.from_numpy(array) for name, array in buffers.received.items()}

    def serve(self, pipe: Connection) -> None:
        """Compute clients until the pipe ends."""
        torch.set_num_threads(1)
        try:
            torch.autograd.backward(torch.ones(1, requires_grad=True))
        except RuntimeError as error:  # PyTorch forbids it where the parent has trained with a graphics card in sight
            pipe.send(str(error))
            return
        while True:
            work, terms, clients = pipe.recv()
            plain, replies, since = replace(terms, measure=()), dict[str, Reply | str](), time.monotonic()
            for client in clients:
                self._buffers.computed[self._number] = client.row
                replies[client.name] = self._reply(work, terms if client.measures else plain, client)
                if time.monotonic() - since > REPORT_SECONDS:
                    pipe.send(replies)
                    replies, since = {}, time.monotonic()
            if replies:
                pipe.send(replies)

    def _reply(self, work: Work, terms: Terms, client: ClientTask) -> Reply | str:
        """Return what a client replies, or why it fails."""
        try:
            last = (last_round(work, terms), self._buffers.personal_of(client.row)) if client.has_personal else None
            local = replace(self._find_client(client.name), personal=PersonalModels(None, last))
            if work == "train":
                return self._train(local, client.row, terms)
            return Reply(client.row, local.evaluate(self._received, terms), {}, {})
        except Exception as error:  # one client's failure is one refused reply, whatever it is
            return in_words(error)

    def _train(self, local: LocalClient, row: int, terms: Terms) -> Reply:
        """Train a client, and leave its models in the shared memory."""
        update = local.train(self._received, terms)
        if terms.personal_lambda is not None and local.personal.last is not None:
            self._buffers.load_personal(row, local.personal.last[1])
        return written(self._buffers.updates, self._buffers.snapshots, row, update)

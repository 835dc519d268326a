"""The engine `workers`: a round's clients on several forked processes with one thread each.

Each client computes as it does in the loop, to the same bits. Workers are forked, so that they have
the task, the data and the model of this process, also a notebook's, in the same memory.
Models are handed over in shared memory, all else through pipes; a worker gets one client at a time,
the largest first. It keeps no state that matters: if it ends during a round, as when the system
kills it because memory runs short, another worker computes its client, to the same numbers. A
client during which two workers have ended is refused.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.client.local import LocalClient, Metrics
from fairbloom.client.local_round import evaluate_client, train_client
from fairbloom.client.rules.registry import kinds_of
from fairbloom.client.states import ClientStates, StateDict
from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import Model, forms_of
from fairbloom.rounds.clients import NOTHING, Replies, TrainReplies, layout_of_second
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.method import Method
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.updates import Updates
from fairbloom.system.machine import tune_allocator
from fairbloom.tasks.models import arrays_of

from .clients import LocalClients, StoredReply, call_client, refuse_failed, store_reply
from .processes import FREED_IS_KEPT, Forked, can_fork, shared_array

# The kinds of calls.
Work = Literal["train", "evaluate"]

# Workers are forked again for clients that they have no data of. Before a fork, the data of clients
# of later rounds are read for this long: forking again costs 0.1 to 0.3 s each time.
READ_AHEAD_SECONDS = 1.0

# A client that has ended this many workers is refused.
MOST_LOSSES = 2


class Call(NamedTuple):
    """The common part of the calls of clients; all get the vectors in `sent`, by record."""

    work: Work
    terms: Terms
    sent: Mapping[str, Model] = {}


class Job(NamedTuple):
    """A client to compute: its row in the matrices, its terms, and the states it resumes from.

    A state is arrays by name, with the round that made it.
    """

    name: str
    row: int
    terms: Terms
    states: Mapping[str, tuple[int, Model]]


class SharedBuffers:
    """The memory in which this process and its workers hand models over.

    It has the model that clients receive, and as many trained and second models as the `matrices`
    have rows. Matrices in a file are shared already; others are replaced by shared ones.
    """

    def __init__(self, layout: Layout, matrices: Sequence[NDArray[Any]], *, second: str) -> None:
        self.rows = len(matrices[0])
        self.received = {
            name: shared_array(array.shape, array.dtype) for name, array in layout.arrays.items()
        }
        self.matrices = (
            matrices
            if isinstance(matrices[0], np.memmap)
            else [shared_array(matrix.shape, matrix.dtype) for matrix in matrices]
        )
        self.updates = Updates(layout, self.matrices[0])
        self.second = (
            Updates(layout_of_second(layout, second), self.matrices[1]) if second else None
        )

    def fit(self, model: Model, rows: int) -> bool:
        """Return whether `rows` clients with models like this one fit into the memory."""
        return forms_of(model) == forms_of(self.received) and rows <= self.rows


class Workers:
    """Forked processes, each of which computes one client at a time.

    `find_client` returns a client by its name.
    """

    def __init__(
        self, count: int, buffers: SharedBuffers, find_client: Callable[[str], LocalClient]
    ) -> None:
        self.buffers = buffers
        self.processes: dict[int, Forked] = {}
        self._count = count
        self._find_client = find_client

    def answers(
        self, call: Call, model: Model, jobs: Sequence[Job]
    ) -> dict[str, StoredReply | str]:
        """Compute clients in the workers; return each client's reply or its error, by name."""
        for name, array in model.items():
            self.buffers.received[name][...] = array
        waiting = list(reversed(jobs))
        computing = dict[int, Job]()
        answers = dict[str, StoredReply | str]()
        losses = Counter[str]()
        informed = set[int]()
        try:
            while waiting or computing:
                for worker in range(self._count):
                    if waiting and worker not in computing:
                        computing[worker] = waiting.pop()
                        self._send(worker, call, computing[worker], first=worker not in informed)
                        informed.add(worker)
                worker, answer = self._receive(computing)
                job = computing.pop(worker)
                if answer is not None:
                    answers[job.name] = answer
                    continue
                how = self.processes.pop(worker).end()
                informed.discard(worker)
                losses[job.name] += 1
                words = "a worker ended (%s) before it had computed client %s, which is %s"
                if losses[job.name] >= MOST_LOSSES:
                    log.warning(words, how, job.name, "refused")
                    answers[job.name] = f"computing it has ended {MOST_LOSSES} workers ({how})"
                else:
                    log.warning(words, how, job.name, "computed again")
                    waiting.append(job)
        except BaseException:  # Ctrl-C too: pending answers must not reach a later call
            self.end()
            raise
        return answers

    def _send(self, worker: int, call: Call, job: Job, *, first: bool) -> None:
        """Give a worker a client, with the call's common part before its first client."""
        if worker not in self.processes:
            self.processes[worker] = Forked(self._serve, self.processes.values())
        sent = call.sent if first else None
        # An OSError means that the worker has ended: `_receive` will notice it.
        with contextlib.suppress(OSError):
            self.processes[worker].pipe.send((sent, call.work, job))

    def _receive(self, computing: Mapping[int, Job]) -> tuple[int, StoredReply | str | None]:
        """Wait for one of these workers; return its number and answer, None if it has ended."""
        ready, *_ = wait([self.processes[worker].pipe for worker in computing])
        worker = next(worker for worker in computing if self.processes[worker].pipe is ready)
        try:
            return worker, self.processes[worker].pipe.recv()
        except (EOFError, OSError):
            return worker, None

    def end(self) -> None:
        """End the workers; later calls start others."""
        while self.processes:
            self.processes.popitem()[1].end()

    # In a worker ----------------------------------------------------------------------------------

    def _serve(self, pipe: Connection) -> None:
        torch.set_num_threads(1)
        tune_allocator(FREED_IS_KEPT)
        received = tensors_of(self.buffers.received)
        vectors = dict[str, StateDict]()
        while True:
            sent, work, job = pipe.recv()
            if sent is not None:
                vectors = {record: tensors_of(arrays) for record, arrays in sent.items()}
            pipe.send(call_client(self._compute, work, received, vectors, job))

    def _compute(
        self,
        work: Work,
        received: StateDict,
        vectors: Mapping[str, StateDict],
        job: Job,
    ) -> StoredReply:
        """Compute a client; leave its models in the shared memory."""
        states = {name: {made: tensors_of(arrays)} for name, (made, arrays) in job.states.items()}
        local = replace(self._find_client(job.name), states=ClientStates(in_memory=states))
        if work == "evaluate":
            return StoredReply(job.row, evaluate_client(local, received, job.terms), {}, {})
        reply = store_reply(
            self.buffers.updates,
            self.buffers.second,
            job.row,
            train_client(local, received, job.terms, vectors),
        )
        made = local.states.made_in(job.terms.server_round)
        return reply._replace(
            made={name: (origin, arrays_of(state)) for name, (origin, state) in made.items()}
        )


class WorkerClients(LocalClients):
    """All clients of a run, several at a time in forked processes, each with its own bits."""

    def __init__(self, method: Method, settings: RunSettings, workers: int) -> None:
        super().__init__(method, settings)
        if not can_fork():
            raise FairbloomError(
                "engine = 'workers': forked processes cannot compute on this platform: set engine ="
                " loop"
            )
        if self.device.type != "cpu":
            raise FairbloomError(
                "engine = 'workers': its processes compute on the CPU, and device is"
                f" {self.device.type}: set device = cpu, or engine = auto"
            )
        self._count = workers
        self.workers: Workers | None = None
        self._loaded_at_fork: tuple[RunSettings, frozenset[str]] = (self.settings, frozenset())

    def close(self) -> None:
        """End the workers; a later call starts others."""
        if self.workers is not None:
            self.workers.end()

    def train(
        self, names: Sequence[str], model: Model, terms: Terms, sent: Mapping[str, Model] = NOTHING
    ) -> TrainReplies:
        """Train the model at these clients on the terms, each on its own data."""
        self.evict_idle(names)
        in_file = self.workers is not None and isinstance(
            self.workers.buffers.matrices[0], np.memmap
        )
        # The method's stored updates are rows of that file, which may exceed memory: leave it to
        # them, and take a new one.
        if in_file and self.method.run_state.kept:
            self.close()
            self.workers = None
        trained = self.empty_replies(
            names, model, terms, sent, self._workers_for(model, len(names)).buffers.matrices
        )
        replies = self._replies(
            Call("train", terms, dict(sent)), model, names, names, trained.refused
        )
        for name, reply in replies.items():
            for state, (origin, arrays) in (reply.made or {}).items():
                self.states(name).keep(state, terms.server_round, self.on_device(arrays), origin)
        self.collect(trained, replies, terms)
        return trained

    def evaluate(
        self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]
    ) -> Replies:
        """Evaluate the model at these clients.

        Only `participants` report the metrics in `terms.measure`.
        """
        self.evict_idle(names)
        refused = Refusals(terms.server_round)
        reports = dict[str, Metrics]()
        asked = frozenset(participants)
        at_once = max(1, len(names))
        if self.workers is not None and terms.has_personal_models:
            # A call has the personal models of its clients in memory: no more than in training.
            at_once = max(1, self.workers.buffers.rows)
        for start in range(0, len(names), at_once):
            replies = self._replies(
                Call("evaluate", terms), model, names[start : start + at_once], asked, refused
            )
            reports |= {name: reply.metrics for name, reply in replies.items()}
        return self.evaluated(reports, refused, names, model, terms)

    def _replies(
        self,
        call: Call,
        model: Model,
        names: Sequence[str],
        asked: Collection[str],
        refused: Refusals,
    ) -> dict[str, StoredReply]:
        """Return the workers' replies for these clients, in the order of names; refuse failed ones.

        Only clients in `asked` report the metrics in the terms' `measure`.
        """
        training = call.work == "train"
        kinds = kinds_of(call.terms, self.settings.client_rule)

        def prepare(row: int, name: str) -> tuple[int, Job]:
            terms = call.terms if name in asked else replace(call.terms, measure=())
            terms = terms.of_client(name)
            states = dict[str, tuple[int, Model]]()
            for rule in kinds:
                version = rule.kept_version(self.states(name), terms, training=training)
                if version is not None:
                    states[rule.keeps] = (version.made, arrays_of(version.state))
            # The data are read in this process, so that all workers share them.
            splits = self.local(name).splits
            return len(splits.train if training else splits.test), Job(name, row, terms, states)

        prepared = refuse_failed(
            {name: call_client(prepare, row, name) for row, name in enumerate(names)}, refused
        )
        largest_first = sorted(prepared.values(), key=lambda each: -each[0])

        workers = self._workers_for(model, min(1, len(prepared)), list(prepared))
        answers = workers.answers(
            call, self.received(model, call.terms), [job for _, job in largest_first]
        )
        return refuse_failed({name: answers[name] for name in prepared}, refused)

    def _workers_for(self, model: Model, rows: int, names: Collection[str] = ()) -> Workers:
        """Return workers with enough shared memory, forked after the clients' data was loaded."""
        settings, loaded = self._loaded_at_fork
        if settings is not self.settings or not loaded.issuperset(names):
            self.close()
            self._read_ahead()
            self._loaded_at_fork = self.settings, frozenset(self._locals)
        if self.workers is None or not self.workers.buffers.fit(model, rows):
            self.close()
            layout = self.method.layout_of(model)
            self.workers = Workers(
                self._count,
                SharedBuffers(layout, self.matrices(layout, rows), second=self.method.second),
                self.local,
            )
        return self.workers

    def _read_ahead(self) -> None:
        """Read the data of clients that may train in later rounds, until the cache is full."""
        ends = time.monotonic() + READ_AHEAD_SECONDS
        for name in self.method.training_clients or self._names:
            if time.monotonic() > ends or len(self._locals) >= self._cache_size:
                return
            call_client(self.local, name)  # it reports an error when it is asked


def tensors_of(arrays: Model) -> StateDict:
    """Return arrays as tensors, which share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

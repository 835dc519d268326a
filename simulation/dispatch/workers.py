"""The engine `workers`: a round's clients on several processes with one thread each.

The processes are forked, so that they have the task, the data and the model of this one, also those of a notebook, in
the same memory. Models are handed over in shared memory, and what is small through pipes. Each client computes as it
does in the loop, to the same bits.
"""

import contextlib
import heapq
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch

from fairbloom.client.local import LocalClient, Metrics
from fairbloom.client.personal import PersonalModels, StateDict
from fairbloom.client.work import LocalWork, epochs_in_time, global_work, personal_work
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import TRAIN_LOSS
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import SNAPSHOTS, Replies, Trained
from fairbloom.rounds.memory import Memory
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import Layout, Model, Updates, Vectors

from ..clients import LocalClients, Reply, failure_reason, store_reply
from .processes import Forked, can_fork, shared_array

log = logging.getLogger("flwr").getChild("fairbloom")

REPORT_SECONDS = 0.1
"""A worker hands over what it has so often, so that little is lost when it is killed."""

DEATHS = 2
"""A client that has ended so many workers is refused."""

NOBODY = -1


class Errand(NamedTuple):
    """What a worker is told of a client.

    Attributes
    ----------
    row
        Its row in the shared memory.
    name
        Of the client.
    terms
        Of its work.
    last
        Whether its last personal model lies in that row.
    """

    row: int
    name: str
    terms: Terms
    last: bool


@dataclass(frozen=True)
class Job:
    """An errand before it is handed out.

    Attributes
    ----------
    errand
        What the worker is told.
    cost
        How many examples it computes with, which its time grows with.
    personal
        The client's last personal model; None: it has none, or needs none.
    """

    errand: Errand
    cost: int
    personal: StateDict | None


Answers = dict[int, Reply | str]
"""What clients reply, or why they do not, by their rows."""


def placed(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Return the places of the costs by worker: the largest first, each with the worker that has least to do.

    The longest list takes at most 4/3 − 1/(3 · workers) times as long as it has to.

    Source: Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17(2), 1969.
    """
    lists: list[list[int]] = [[] for _ in range(workers)]
    loads = [(0.0, worker) for worker in range(workers)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        load, worker = loads[0]
        lists[worker].append(place)
        heapq.heapreplace(loads, (load + costs[place], worker))
    return lists


class Board:
    """The memory in which this process and its workers hand models over.

    Attributes
    ----------
    received
        The arrays of the model that clients get.
    updates, snapshots
        The rows that trained models are written to, and those in the midst of the work, where they are wanted.
    personal
        The arrays of personal models, one below the other, where clients have some.
    at_work
        The row of the client that each worker is busy with.

    Parameters
    ----------
    layout
        Of the model.
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
        self.at_work = shared_array((workers,), np.int64)

    def fits(self, model: Model, rows: int, *, personal: bool) -> bool:
        """Return whether there is place for so many clients with such models."""
        told, have = ([(n, a.shape, a.dtype) for n, a in arrays.items()] for arrays in (model, self.received))
        return told == have and rows <= self.rows and (not personal or bool(self.personal))

    def load_personal(self, row: int, model: StateDict) -> None:
        """Write a personal model into its row."""
        for name, tensor in model.items():
            self.personal[name][row].copy_(tensor)

    def personal_of(self, row: int) -> StateDict:
        """Return the personal model of a row, in its memory."""
        return {name: tensor[row] for name, tensor in self.personal.items()}


class WorkerClients(LocalClients):
    """All clients of a run, several at a time, each as it would be computed by itself.

    A worker that ends, killed as memory runs short, is replaced, and what it had not finished is computed again, to the
    same bits. A client that ends two of them is refused.

    Parameters
    ----------
    method
        Says which metrics it needs and which arrays are buffers.
    settings
        The run config.
    workers
        How many processes compute, at least 1.

    Raises
    ------
    FairbloomError
        When the task cannot be loaded, the device is not the CPU, or the platform does not fork.
    """

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
        self._count = workers
        self._board: Board | None = None
        self._workers: dict[int, Forked] = {}
        self._seen: tuple[RunSettings, frozenset[str]] = (self.settings, frozenset())

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data.

        The next call uses the memory of the returned updates again; those that the method keeps are copied before.

        Raises
        ------
        FairbloomError
            When the system gives no processes or no memory.
        """
        self.begin(names, terms)
        personal, refused = terms.personal_lambda is not None, Refusals(terms.server_round)
        layout = Layout(model, self.method.buffers, self.method.shared)
        self._spare_kept()
        board = self._board_for(layout, len(names), personal=personal)
        updates, snapshots = Updates(layout, len(names), board.updates.matrix), None
        if board.snapshots is not None:
            snapshots = Updates(layout, len(names), board.snapshots.matrix, of=SNAPSHOTS)
        trained = Trained(metrics={}, refused=refused, updates=updates, snapshots=snapshots)
        jobs = self._jobs(names, self._training(terms), terms.server_round, refused)
        replies = _usable(jobs, self._computed("train", jobs, model), refused)
        for name, reply in replies.items() if personal else ():
            self.personal(name).keep(terms.server_round, board.personal_of(reply.row))
        self.hand_over(trained, replies)
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure.

        Raises
        ------
        FairbloomError
            As `train` does.
        """
        self.begin(names, terms)
        personal, refused, told = terms.personal_lambda is not None, Refusals(terms.server_round), dict[str, Metrics]()
        board = self._board
        if board is None or not board.fits(model, 1, personal=personal):
            layout = Layout(model, self.method.buffers, self.method.shared)
            board = self._board_for(layout, len(names), personal=personal)
        evaluation = self._evaluation(terms, set(participants))
        at_once = max(1, board.rows if personal else len(names))
        for start in range(0, len(names), at_once):
            jobs = self._jobs(names[start : start + at_once], evaluation, terms.server_round + 1, refused)
            replies = _usable(jobs, self._computed("evaluate", jobs, model), refused)
            told |= {name: reply.metrics for name, reply in replies.items()}
        return self.evaluated(told, refused)

    def close(self) -> None:
        """End the workers; a later call starts others."""
        while self._workers:
            self._workers.popitem()[1].end()

    # What there is to do ----------------------------------------------------------------------------------------------

    def _training(self, terms: Terms) -> Callable[[LocalClient], tuple[Terms, int]]:
        """Return what tells the terms of a client's training, and its cost."""
        work, own = global_work(self.settings, terms), personal_work(self.settings, terms)
        passes = 0 if terms.personal_lambda is None else own.epochs

        def training(local: LocalClient) -> tuple[Terms, int]:
            count, in_full = len(local.splits.train), terms.full_batch_step
            epochs = work.epochs if in_full else epochs_in_time(self.settings, terms.server_round, local.key)
            return terms, examples_met(count, work, epochs) + examples_met(count, own, passes)

        return training

    def _evaluation(self, terms: Terms, asked: Collection[str]) -> Callable[[LocalClient], tuple[Terms, int]]:
        """Return what tells the terms of a client's evaluation, and its cost."""
        plain = replace(terms, measure=())
        passes = 1 if terms.personal_lambda is None else 2

        def evaluation(local: LocalClient) -> tuple[Terms, int]:
            told, splits = terms if local.name in asked else plain, local.splits
            others = len(splits.validation or ()) + (len(splits.train) if TRAIN_LOSS in told.measure else 0)
            return told, passes * len(splits.test) + others

        return evaluation

    def _jobs(
        self, names: Sequence[str], of: Callable[[LocalClient], tuple[Terms, int]], before: int, refused: Refusals
    ) -> list[Job]:
        """Return the work of these clients, with their personal models of rounds `before` one; refuse who has none."""
        jobs = []
        for row, name in enumerate(names):
            try:
                terms, cost = of(self.local(name))
                personal = None if terms.personal_lambda is None else self.personal(name).before(before)
                jobs.append(Job(Errand(row, name, terms, personal is not None), cost, personal))
            except Exception as error:  # one client's failure is one refused reply, whatever it is
                refused.add(name, failure_reason(error))
        return jobs

    # Memory -----------------------------------------------------------------------------------------------------------

    def _board_for(self, layout: Layout, rows: int, *, personal: bool) -> Board:
        """Return the board, a new one where it lacks place."""
        if self._board is None or not self._board.fits(layout.arrays, rows, personal=personal):
            self.close()  # the workers see the old one
            memory, snapshots = Memory(self.settings.memory), self.method.snapshots
            self._board = Board(layout, rows, self._count, memory, snapshots=snapshots, personal=personal)
        return self._board

    def _spare_kept(self) -> None:
        """Let the method have old updates that it keeps for itself, before the next ones are written to their rows."""
        if self._board is None:
            return
        kept, matrix = self.method.progress.kept, self._board.updates.matrix
        lying = [key for key, row in kept.items() if np.may_share_memory(row.blocks[0][:], matrix)]
        if lying and isinstance(matrix, np.memmap):  # they may be more than there is memory: they keep their file
            self.close()
            self._board = None
            return
        for key in lying:
            kept[key] = Vectors((np.array(kept[key].blocks[0][:]),), kept[key].scales)

    # Processes --------------------------------------------------------------------------------------------------------

    def _computed(self, what: str, jobs: Sequence[Job], model: Model) -> Answers:
        """Let the workers do jobs, and return what came of each."""
        board = self._board
        if board is None:
            raise RuntimeError("there is no board yet that models are handed over on")
        names = {job.errand.name for job in jobs}
        settings, seen = self._seen
        if settings is not self.settings or not names <= seen:
            self.close()  # a worker has what this process had when it was forked
            self._seen = self.settings, frozenset(self._locals)
        for name, array in model.items():
            board.received[name][...] = array
        shift = _Shift(what, board, self._workers, lambda number: self._forked(number, board))
        try:
            return shift.answers(jobs, self._count)
        except BaseException:  # Ctrl-C too: what is still on its way is nobody's
            self.close()
            raise

    def _forked(self, number: int, board: Board) -> Forked:
        return Forked(lambda pipe: self._serve(number, board, pipe), self._workers.values())

    def _serve(self, number: int, board: Board, pipe: Connection) -> None:
        """Do errands, in a worker, until the pipe ends."""
        torch.set_num_threads(1)
        try:
            torch.autograd.backward(torch.ones(1, requires_grad=True))
        except RuntimeError as error:  # PyTorch forbids it where the parent has trained with a graphics card in sight
            pipe.send(str(error))
            return
        received = {name: torch.from_numpy(array) for name, array in board.received.items()}
        compute = {"train": self._train_one, "evaluate": self._evaluate_one}
        while True:
            what, errands = pipe.recv()
            done, since = Answers(), time.monotonic()
            for errand in errands:
                board.at_work[number] = errand.row
                try:
                    done[errand.row] = compute[what](errand, received, board)
                except Exception as error:  # one client's failure is one refused reply, whatever it is
                    done[errand.row] = failure_reason(error)
                if time.monotonic() - since > REPORT_SECONDS:
                    pipe.send(done)
                    done, since = Answers(), time.monotonic()
            if done:
                pipe.send(done)

    def _train_one(self, errand: Errand, received: StateDict, board: Board) -> Reply:
        """Train one client in a worker, and leave its models on the board."""
        local = self._with_personal(errand, board, errand.terms.server_round - 1)
        update = local.train(received, errand.terms)
        if errand.terms.personal_lambda is not None and local.personal.last is not None:
            board.load_personal(errand.row, local.personal.last[1])
        return store_reply(board.updates, board.snapshots, errand.row, update)

    def _evaluate_one(self, errand: Errand, received: StateDict, board: Board) -> Reply:
        """Evaluate one client in a worker."""
        local = self._with_personal(errand, board, errand.terms.server_round)
        return Reply(errand.row, local.evaluate(received, errand.terms), {}, {})

    def _with_personal(self, errand: Errand, board: Board, number: int) -> LocalClient:
        """Return a client with the last personal model that it was handed, as one of round `number`."""
        last = (number, board.personal_of(errand.row)) if errand.last else None
        return replace(self.local(errand.name), personal=PersonalModels(None, last))


class _Shift:
    """What the workers do from a question to its answer.

    Parameters
    ----------
    what
        Whether clients "train" or "evaluate".
    board
        Where models are handed over.
    workers
        The processes by number, which this adds to, and replaces.
    forked
        Returns a new one of a number.
    """

    def __init__(self, what: str, board: Board, workers: dict[int, Forked], forked: Callable[[int], Forked]) -> None:
        self._what, self._board, self._workers, self._forked = what, board, workers, forked
        self._deaths: Counter[int] = Counter()
        self._waiting: dict[int, dict[int, Job]] = {}
        self._answers: Answers = {}

    def answers(self, jobs: Sequence[Job], workers: int) -> Answers:
        """Let so many workers do jobs; return what came of each."""
        for number, places in enumerate(placed([1 + job.cost for job in jobs], workers)):
            self._hand(number, [jobs[place] for place in places])
        while self._waiting:
            ready = wait([self._workers[number].pipe for number in self._waiting])
            for number in [number for number in self._waiting if self._workers[number].pipe in ready]:
                try:
                    self._take_in(number, self._workers[number].pipe.recv())
                except (EOFError, OSError):
                    self._replace(number)
        return self._answers

    def _hand(self, number: int, jobs: Sequence[Job]) -> None:
        """Give a worker its list."""
        if not jobs:
            return
        self._waiting[number] = {job.errand.row: job for job in jobs}
        for job in jobs:
            if job.personal is not None:
                self._board.load_personal(job.errand.row, job.personal)
        self._board.at_work[number] = NOBODY
        if number not in self._workers:
            self._workers[number] = self._forked(number)
        with contextlib.suppress(OSError):  # it has ended, which shows when its answer is waited for
            self._workers[number].pipe.send((self._what, [job.errand for job in jobs]))

    def _take_in(self, number: int, told: Answers | str) -> None:
        """Note what a worker has done, or raise FairbloomError where it can do nothing."""
        if isinstance(told, str):
            raise FairbloomError(
                f"engine = 'workers': a process that is forked here cannot train ({told}): set engine = loop, or hide "
                "the graphics card from a new process by CUDA_VISIBLE_DEVICES="
            )
        self._answers |= told
        for row in told:
            del self._waiting[number][row]
        if not self._waiting[number]:
            del self._waiting[number]

    def _replace(self, number: int) -> None:
        """Let a new worker do what one that has ended had left, the client that it was busy with last."""
        how, left = self._workers.pop(number).end(), self._waiting.pop(number)
        busy = int(self._board.at_work[number])
        suspect = left.pop(busy if busy in left else next(iter(left)))
        name = suspect.errand.name
        self._deaths[suspect.errand.row] += 1
        if self._deaths[suspect.errand.row] < DEATHS:
            left[suspect.errand.row] = suspect
            log.warning("a worker process ended (%s) before client %s was computed: another one does it", how, name)
        else:
            self._answers[suspect.errand.row] = f"computing it has ended {DEATHS} worker processes ({how})"
        self._hand(number, list(left.values()))


def _usable(jobs: Sequence[Job], answers: Answers, refused: Refusals) -> dict[str, Reply]:
    """Return the replies by client; those that failed are refused."""
    replies: dict[str, Reply] = {}
    for errand in (job.errand for job in jobs):
        answer = answers[errand.row]
        if isinstance(answer, Reply):
            replies[errand.name] = answer
        else:
            refused.add(errand.name, answer)
    return replies


def examples_met(count: int, work: LocalWork, epochs: int) -> int:
    """Return how many examples the steps of a client with `count` of them take, short batches counted as whole ones."""
    batch = max(1, min(work.batch_size or count, count))
    steps = epochs * math.ceil(count / batch) if work.steps is None else work.steps
    return steps * batch

"""The engine `ray`: a round's clients in shards, on workers of a Ray cluster.

A shard is computed stacked or one client after the other, as in one process.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.imports import check_seen
from fairbloom.logs import log
from fairbloom.protocol.names import NUM_EXAMPLES
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import one_line
from fairbloom.rounds.updates import Model

from ..clients import Reply
from .balance import balance, home
from .dispatch import Answers, Call, ClientTask, Dispatch, DispatchedClients, Lost, ScheduledTask, pack_starts
from .shards import ShardWorker, Share, asking

try:
    import ray
    from ray.exceptions import (
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RayActorError,
        RayTaskError,
        WorkerCrashedError,
    )
except ModuleNotFoundError as error:
    raise FairbloomError("engine = 'ray': Ray is not installed: pip install 'fairbloom[ray]'") from error


LOST = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)
"""What Ray raises where a worker, its node or its answer is gone."""

PLACE_SECONDS = 60.0
"""Seconds that workers wait for a free place on the cluster, before those that have one do the work of all."""

RETRIES, RETRY_SECONDS = 20, 0.1
"""How often, and how soon again, the folder of a local cluster is removed until it is gone."""


# The cluster ----------------------------------------------------------------------------------------------------------


class Cluster:
    """The connection to Ray: the existing one, or to the cluster that RAY_ADDRESS names, or to a local one."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._ours = not ray.is_initialized()
        if self._ours:
            address = os.environ.get("RAY_ADDRESS", "")
            if address in ("", "local"):
                self._start()
            else:
                _join(address)

    def places(self, resource: str) -> int:
        """Return how many whole CPUs or GPUs the cluster has, busy ones too."""
        resources: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return int(resources.get(resource, 0))

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._ours:
            ray.shutdown()
            self._ours = False
        for _ in range(RETRIES):  # a process of Ray's that is about to end may still write a file
            if self._folder is None or not self._folder.exists():
                return
            shutil.rmtree(self._folder, ignore_errors=True)
            time.sleep(RETRY_SECONDS)

    def _start(self) -> None:
        # Sockets lie in the folder, and the system allows them no long paths, such as those of a Mac's own TMPDIR.
        self._folder = Path(tempfile.mkdtemp(prefix="fairbloom-ray-", dir="/tmp" if os.name == "posix" else None))  # noqa: S108
        try:
            _connect(address="local", include_dashboard=False, _temp_dir=str(self._folder))
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise FairbloomError(f"engine = 'ray': Ray cannot be started here: {one_line(str(error))}") from error
            raise


def _join(address: str) -> None:
    remedy = "start Ray there, or unset RAY_ADDRESS for a cluster on this machine alone"
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), 10.0).close()
        _connect(address=address)
    except Exception as error:
        reason = one_line(str(error))
        raise FairbloomError(
            f"RAY_ADDRESS = {address!r}: this Ray cluster cannot be joined ({reason}): {remedy}"
        ) from error


def _connect(**options: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with warnings.catch_warnings(action="ignore"):  # of what a later version will do
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)


# Its workers ----------------------------------------------------------------------------------------------------------


class Actors:
    """The way to `count` actors on a Ray cluster and back, each with a `share` of it.

    `begin` is for `ShardWorker.begin`.
    """

    def __init__(self, count: int, share: Mapping[str, float], begin: Sequence[Any]) -> None:
        self._share, self._begin = share, begin
        started = self._start(count)
        self._actors: list[Any] = [started[worker % len(started)] for worker in range(count)]
        self._on_way: dict[int, deque[tuple[Any, ScheduledTask]]] = {}
        self._call: Any = None
        self._frozen: Model = {}
        self._frozen_there: Any = ray.put({})

    def begin(self, call: Call) -> None:
        """Put what is asked into the cluster's memory, once for all workers; frozen parameters lie there already."""
        frozen = {name: call.model[name] for name in call.method.frozen if name in call.model}
        if any(self._frozen.get(name) is not array for name, array in frozen.items()):
            self._frozen, self._frozen_there = frozen, ray.put(frozen)
        changing = {name: array for name, array in call.model.items() if name not in frozen}
        self._call = ray.put(call._replace(method=asking(call.method), model=changing, trained=None))

    def send(self, call: Call, worker: int, tasks: Sequence[ScheduledTask]) -> None:
        """Give a worker its shards; Ray lets it compute one after the other."""
        actor = self._actor(worker)
        self._on_way[worker] = deque()
        for task in tasks:
            names = [client.name for client in task.clients]
            kept = {each.name: pack_starts(each.states) for each in task.clients if each.states}
            self._on_way[worker].append((actor.compute.remote(self._call, self._frozen_there, names, kept), task))

    def receive(self, call: Call, workers: Collection[int]) -> tuple[int, Answers | Lost]:
        """Return what a worker has computed of a shard."""
        first = {self._on_way[worker][0][0]: worker for worker in workers}
        (done,), _ = ray.wait(list(first), num_returns=1)
        worker = first[done]
        _, task = self._on_way[worker].popleft()
        try:
            share = _got(done)
        except LOST as error:
            gone = self._actors[worker]
            if gone is not None:
                ray.kill(gone)
            self._actors = [None if actor is gone else actor for actor in self._actors]
            return worker, Lost(_why(error), task.clients[0].row)
        return worker, _answers(share, task, call.trained)

    def end(self) -> None:
        """End the workers; later tasks start others."""
        for actor in {id(actor): actor for actor in self._actors if actor is not None}.values():
            ray.kill(actor)
        self._actors = [None] * len(self._actors)

    def _actor(self, worker: int) -> Any:
        """Return a worker; one that has ended is replaced, by another one where the cluster has no place for it."""
        if self._actors[worker] is None:
            others = [actor for actor in self._actors if actor is not None]
            started = self._start(1, needed=not others)
            self._actors[worker] = started[0] if started else others[worker % len(others)]
        return self._actors[worker]

    def _start(self, count: int, *, needed: bool = True) -> list[Any]:
        """Return `count` new workers, or those that the cluster has a place for, one at least if `needed`."""
        maker: Any = ray.remote(ShardWorker).options(**{"num_cpus": 0, **self._share})
        workers = [maker.remote(str(Path.cwd()), sys.path) for _ in range(count)]
        begun = {worker.begin.remote(*self._begin): worker for worker in workers}
        try:
            while not (ready := ray.wait(list(begun), num_returns=count, timeout=PLACE_SECONDS)[0]) and needed:
                log.warning(
                    "the Ray cluster has had no place for a worker for %g seconds: the run waits", PLACE_SECONDS
                )
            for reference in ready:
                _got(reference)
        except BaseException as error:
            for worker in workers:
                ray.kill(worker)
            if isinstance(error, LOST):
                needs = "its machines need the same Python, Ray and Fairbloom as this one"
                raise FairbloomError(f"engine = 'ray': no worker can be started: {_why(error)}: {needs}") from error
            raise
        for reference, worker in begun.items():
            if reference not in ready:
                ray.kill(worker)
        if len(ready) < count:
            lacking = count - len(ready)
            words = "the Ray cluster had no place for %d of %d workers within %g seconds: others compute their shards"
            log.warning(words, lacking, count, PLACE_SECONDS)
        return [begun[reference] for reference in ready]


def _answers(share: Share, task: ScheduledTask, trained: Trained | None) -> Answers:
    """Copy the models of a shard, which lie in Ray's memory, and return what it answers."""
    answers, rows = Answers(share.refused), {client.name: client.row for client in task.clients}
    for name, reply in share.replies.items():
        row = rows[name]
        if trained is not None and share.updates is not None:
            trained.updates.matrix[row] = share.updates[reply.row]
            if trained.second is not None and share.second is not None:
                trained.second.matrix[row] = share.second[reply.row]
        answers[name] = reply._replace(row=row)
    return answers


def _got(reference: Any) -> Any:
    """Return an answer; a FairbloomError of a worker is raised as it was there."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, FairbloomError):
            raise FairbloomError(str(cause)) from error
        raise


def _why(error: Exception) -> str:
    """Return what Ray says has become of a worker, without its advice."""
    text = one_line(str(error))
    said, _, _ = (text.partition("The actor is dead because ")[2] or text).partition(" Some common causes")
    return said.rstrip(".")


# The engine -----------------------------------------------------------------------------------------------------------


class RayClients(DispatchedClients):
    """All clients of a run, on the workers of a Ray cluster.

    Each client has a worker by its name, its home, which has loaded its data; a round's shards are evened out by the
    sizes of its clients. There are as many `shards` as GPUs, or CPUs, but no more than clients, unless a number is
    given. Up to `block` clients are stacked; 0: none.
    """

    def __init__(self, method: Method, settings: Mapping[str, Any], shards: int | None = None, block: int = 0) -> None:
        for key in ("task", "model", "optimizer", "partition", "client-rule"):
            check_seen(key, str(settings.get(key, "")), "Ray's workers")
        super().__init__(method, {**settings, "device": "cpu"})  # the workers compute
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._cluster = Cluster()
        try:
            device, places = _device(str(settings["device"]), self._cluster)
            self.processes = shards or max(1, min(places, len(self._names)))
            resource = "num_gpus" if device.startswith("cuda") else "num_cpus"
            share = {resource: 1.0 / -(-self.processes // places)}
            begin = (asking(method), self.settings.model_copy(update={"device": device, "state_dir": ""}), block)
            self._actors = Actors(self.processes, share, begin)
        except BaseException:
            self._cluster.close()
            raise

    def close(self) -> None:
        """End the workers, and the cluster where it was started for this run."""
        self._actors.end()
        self._cluster.close()

    def _room(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        return self.none_trained(names, model, terms)

    def _cost(self, call: Call, names: Sequence[str]) -> Callable[[str], float]:
        """Return the function that says how many training examples a client has: 0, where they cannot be read."""
        homes: list[list[ClientTask]] = [[] for _ in range(self.processes)]
        for row, name in enumerate(names):
            if name not in self._sizes:
                homes[home(name, self.processes)].append(ClientTask(name, row))
        count = call._replace(work="count", model={}, trained=None)
        for name, answer in Dispatch(self._actors, count).answers(_shards(homes)).items():
            self._sizes[name] = int(answer.metrics[NUM_EXAMPLES]) if isinstance(answer, Reply) else 0
        for name in names:
            self._sizes.move_to_end(name)
        while len(self._sizes) > self._most:
            self._sizes.popitem(last=False)
        return self._sizes.__getitem__

    def _transport(self, call: Call, clients: Sequence[ClientTask]) -> Actors:
        return self._actors

    def _lists(self, clients: Sequence[ClientTask], costs: Sequence[float]) -> list[list[ScheduledTask]]:
        lists = balance(costs, self.processes, [home(client.name, self.processes) for client in clients])
        return _shards([[clients[place] for place in sorted(places)] for places in lists])


def _shards(lists: Sequence[Sequence[ClientTask]]) -> list[list[ScheduledTask]]:
    return [[ScheduledTask(clients)] if clients else [] for clients in lists]


def _device(name: str, cluster: Cluster) -> tuple[str, int]:
    """Return the device that workers compute on, as they see it, and how many of its kind the cluster has."""
    gpus = cluster.places("GPU")
    if name.startswith("cuda") and not gpus:
        raise FairbloomError(f"device = {name!r}: the Ray cluster has no GPU: auto or cpu would do")
    if name.startswith("cuda") or (name == "auto" and gpus):
        return "cuda", gpus  # Ray shows each worker its own
    return ("cpu" if name == "auto" else name), max(1, cluster.places("CPU"))

"""The engine `ray`: a round's clients in shards, on workers of a Ray cluster.

A shard is computed stacked or one client after the other, as in one process. Workers keep data, and nothing else that
matters: the model, and the clients' personal models, come with each call and go back with the answer. So what a lost
worker has not answered is computed again by another one, to the same numbers.
"""

import heapq
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from fairbloom.errors import FairbloomError
from fairbloom.imports import check_seen
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals, one_line
from fairbloom.rounds.updates import Model

from ..clients import LocalClients, Reply, arrays_of
from .shards import Asked, Personal, Worker, asking

log = logging.getLogger("flwr").getChild("fairbloom")

LOST = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)
"""What Ray raises where a worker, its node or its answer is gone."""

PATIENCE = 60.0
"""Seconds that workers wait for a free place on the cluster, before those that have one do the work of all."""

RETRIES, RETRY_SECONDS = 20, 0.1
"""How often, and how soon again, the folder of a local cluster is removed until it is gone."""

ANSWERS_WITHIN = 10.0
"""Seconds within which the address of a cluster has to answer."""

Send = Callable[[Any, Sequence[str]], Any]
"""Tells a worker what to do for these clients; returns Ray's reference to the answer."""


# The cluster ----------------------------------------------------------------------------------------------------------


class Cluster:
    """The connection to Ray: the one that there is, or to the cluster that RAY_ADDRESS names, or to a local one.

    Raises
    ------
    FairbloomError
        When the address does not answer, or no Ray can be started here.
    """

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
    """Join the cluster at an address."""
    remedy = "start Ray there, or unset RAY_ADDRESS for a cluster on this machine alone"
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN).close()
        _connect(address=address)
    except Exception as error:
        reason = one_line(str(error))
        raise FairbloomError(
            f"RAY_ADDRESS = {address!r}: this Ray cluster cannot be joined ({reason}): {remedy}"
        ) from error


def _connect(**options: Any) -> None:
    """Connect to Ray, and let it say nothing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with warnings.catch_warnings(action="ignore"):  # of what a later version will do
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)


# In the server's process ----------------------------------------------------------------------------------------------


@dataclass
class Errand:
    """Clients that a worker is to compute.

    Attributes
    ----------
    names
        Of the clients.
    losses
        How many workers were lost that had them to compute.
    """

    names: Sequence[str]
    losses: int = 0


class RayClients(LocalClients):
    """All clients of a run, on the workers of a Ray cluster.

    Each client has a shard by its name; a round's shards are evened out by the sizes of its clients. Where a worker is
    lost, another one computes its shard. If that one is lost too, the clients are computed one by one, and the one that
    ends a third is refused.

    Parameters
    ----------
    method
        Says which metrics it needs and which arrays are buffers.
    settings
        The run config. Where its device is auto, clients compute on the cluster's GPUs, if it has any.
    shards
        How many shards there are, with a worker each; None: one for each GPU, or CPU, but no more than clients.
    block
        The most clients that are stacked at once; 0: they are computed one by one.

    Attributes
    ----------
    shards
        How many shards there are.

    Raises
    ------
    FairbloomError
        When the task cannot be loaded, here or on the workers; or no Ray cluster, or none with such a device, answers.
    """

    def __init__(self, method: Method, settings: Mapping[str, Any], shards: int | None = None, block: int = 0) -> None:
        for key in ("task", "model"):
            check_seen(key, str(settings.get(key, "")), "Ray's workers")
        super().__init__(method, {**settings, "device": "cpu"})  # the workers compute
        self._cluster = Cluster()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._workers: list[Any] = []
        try:
            device, places = _device(str(settings["device"]), self._cluster)
            self.shards = shards or max(1, min(places, len(self._names)))
            self.processes = self.shards
            self._resource = "num_gpus" if device.startswith("cuda") else "num_cpus"
            self._part = 1.0 / -(-self.shards // places)
            self._told = (asking(method), self.settings.model_copy(update={"device": device, "state_dir": ""}), block)
            started = self._started(self.shards)
            self._workers = [started[shard % len(started)] for shard in range(self.shards)]
        except BaseException:
            self.close()
            raise

    def train(self, names: Sequence[str], model: Model, terms: Terms) -> Trained:
        """Let these clients train the model on the terms, each on its own data.

        Raises
        ------
        FairbloomError
            When workers were lost, and the cluster starts no other ones.
        """
        self.begin(names, terms)
        trained, places = self.none_trained(names, model, terms), {name: place for place, name in enumerate(names)}
        asked, replies = ray.put(Asked(asking(self.method), model, terms)), dict[str, Reply]()

        def send(worker: Any, some: Sequence[str]) -> Any:
            return worker.train.remote(asked, some, self._personal_before(some, terms, terms.server_round))

        for some, share in self._answers(self._placed(names), send):
            if isinstance(share, str):
                trained.refused.add(some[0], share)
                continue
            for name, reason in share.refused.items():
                trained.refused.add(name, reason)
            for name, made in share.personal.items():
                self.personal(name).keep(terms.server_round, self.on_device(made))
            for name, reply in share.replies.items():
                replies[name] = reply._replace(row=places[name])
                trained.updates.matrix[places[name]] = share.updates[reply.row]
                if trained.snapshots is not None and share.snapshots is not None:
                    trained.snapshots.matrix[places[name]] = share.snapshots[reply.row]
        self.hand_over(trained, {name: replies[name] for name in names if name in replies})
        return trained

    def evaluate(self, names: Sequence[str], model: Model, terms: Terms, participants: Collection[str]) -> Replies:
        """Let these clients evaluate the model; of `participants` alone is asked what the terms ask to measure.

        Raises
        ------
        FairbloomError
            As `train` does.
        """
        self.begin(names, terms)
        refused, told, wanted = Refusals(terms.server_round), dict[str, dict[str, float]](), set(participants)
        asked = ray.put(Asked(asking(self.method), model, terms))

        def send(worker: Any, some: Sequence[str]) -> Any:
            personal = self._personal_before(some, terms, terms.server_round + 1)
            return worker.evaluate.remote(asked, some, personal, wanted.intersection(some))

        for some, answer in self._answers(self._placed(names), send):
            reports, reasons = answer if not isinstance(answer, str) else ({}, {some[0]: answer})
            told |= reports
            for name, reason in reasons.items():
                refused.add(name, reason)
        return Replies(metrics={name: told[name] for name in names if name in told}, refused=refused)

    def close(self) -> None:
        """End the workers, and the cluster where it was started for this run."""
        while self._workers:
            ray.kill(self._workers.pop())
        self._cluster.close()

    # Shards -----------------------------------------------------------------------------------------------------------

    def _placed(self, names: Sequence[str]) -> list[list[str]]:
        """Return the clients by shard, in the order of names; see `placed`."""
        unknown = [name for name in names if name not in self._sizes]
        homes: list[list[str]] = [[] for _ in range(self.shards)]
        for name in unknown:
            homes[home(name, self.shards)].append(name)
        for some, sizes in self._answers(homes, lambda worker, some: worker.sizes.remote(some)):
            self._sizes |= zip(some, [0] if isinstance(sizes, str) else sizes, strict=True)
        for name in names:
            self._sizes.move_to_end(name)
        while len(self._sizes) > self._most:
            self._sizes.popitem(last=False)
        return placed({name: self._sizes[name] for name in names}, self.shards)

    def _personal_before(self, names: Sequence[str], terms: Terms, number: int) -> Personal:
        """Return the personal models that these clients have before a round, where the terms are about them."""
        if terms.personal_lambda is None:
            return {}
        last = {name: self.personal(name).before(number) for name in names}
        return {name: arrays_of(model) for name, model in last.items() if model is not None}

    # Workers ----------------------------------------------------------------------------------------------------------

    def _answers(self, shards: Sequence[Sequence[str]], send: Send) -> Iterator[tuple[Sequence[str], Any]]:
        """Yield what the shards answer as it comes, with the clients that it is of; of one that is given up, why."""
        queues = [deque([Errand(names)] if names else []) for names in shards]
        at_work = {send(self._workers[k], queue[0].names): k for k, queue in enumerate(queues) if queue}
        while at_work:
            (done,), _ = ray.wait(list(at_work), num_returns=1)
            shard = at_work.pop(done)
            errand = queues[shard].popleft()
            try:
                answer = _got(done)
            except LOST as error:
                again = self._lost(shard, errand, error)
                queues[shard].extendleft(reversed(again))
                answer = None if again else f"computing it has ended {errand.losses} Ray workers: {_why(error)}"
            del done
            if queues[shard]:
                at_work[send(self._workers[shard], queues[shard][0].names)] = shard
            if answer is not None:
                yield errand.names, answer
                del answer

    def _lost(self, shard: int, errand: Errand, error: Exception) -> list[Errand]:
        """Replace the worker of a shard; return what it is to do again, nothing where a client is given up."""
        errand.losses += 1
        alone = len(errand.names) == 1
        given_up, singly = alone and errand.losses > 1, not alone and errand.losses > 1
        what = f"client {errand.names[0]}" if alone else f"the shard of {len(errand.names)} clients"
        then = "is refused" if given_up else "is computed again, client by client" if singly else "is computed again"
        log.warning("a Ray worker was lost, and %s %s: %s", what, then, _why(error))
        self._replace(shard)
        if given_up:
            return []
        return [Errand([name], errand.losses) for name in errand.names] if singly else [errand]

    def _replace(self, shard: int) -> None:
        """Give a shard a new worker, or where the cluster has no place for one, that of another shard."""
        gone = self._workers[shard]
        ray.kill(gone)
        others = [worker for worker in self._workers if worker is not gone]
        started = self._started(1, needed=not others)
        self._workers[shard] = started[0] if started else others[shard % len(others)]

    def _started(self, count: int, *, needed: bool = True) -> list[Any]:
        """Return so many new workers, or those of them that the cluster has a place for, one at least if `needed`.

        Raises
        ------
        FairbloomError
            When none can be started, or the task cannot be loaded there.
        """
        maker: Any = ray.remote(Worker).options(**{"num_cpus": 0, self._resource: self._part})
        workers = [maker.remote(str(Path.cwd()), sys.path) for _ in range(count)]
        begun = {worker.begin.remote(*self._told): worker for worker in workers}
        try:
            while not (ready := ray.wait(list(begun), num_returns=count, timeout=PATIENCE)[0]) and needed:
                log.warning("the Ray cluster has had no place for a worker for %g seconds: the run waits", PATIENCE)
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
            log.warning(words, lacking, count, PATIENCE)
        return [begun[reference] for reference in ready]


def home(name: str, shards: int) -> int:
    """Return a client's own shard."""
    return zlib.crc32(name.encode()) % shards


def placed(sizes: Mapping[str, int], shards: int) -> list[list[str]]:
    """Return the clients by shard, in the order in which they are given.

    The largest is placed first. Each has its own shard, where its data have been loaded, unless that has its fair part
    already: then it has the one with least to do. So the shards depend on nothing but these names and sizes.
    """
    fair = sum(sizes.values()) / shards
    loads = [0.0] * shards
    chosen: dict[str, int] = {}
    least = [(0.0, shard) for shard in range(shards)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        shard = home(name, shards)
        if loads[shard] + sizes[name] > fair:
            while least[0][0] != loads[least[0][1]]:  # it was filled since
                heapq.heapreplace(least, (loads[least[0][1]], least[0][1]))
            shard = least[0][1]
        loads[shard] += sizes[name]
        chosen[name] = shard
    lists: list[list[str]] = [[] for _ in range(shards)]
    for name in sizes:
        lists[chosen[name]].append(name)
    return lists


def _device(name: str, cluster: Cluster) -> tuple[str, int]:
    """Return the device that workers compute on, as they see it, and how many of its kind the cluster has."""
    gpus = cluster.places("GPU")
    if name.startswith("cuda") and not gpus:
        raise FairbloomError(f"device = {name!r}: the Ray cluster has no GPU: auto or cpu would do")
    if name.startswith("cuda") or (name == "auto" and gpus):
        return "cuda", gpus  # Ray shows each worker its own
    return ("cpu" if name == "auto" else name), max(1, cluster.places("CPU"))


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

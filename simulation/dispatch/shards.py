"""A worker of a Ray cluster, which computes shards: the clients of a task together. It needs no Ray to do so."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.protocol.names import NUM_EXAMPLES
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import Model

from ..clients import LocalClients, Reply, answer_of, refuse_failed
from ..loop import LoopClients
from ..stacked.clients import StackedClients
from .dispatch import Call, Starts, pack_made


class Share(NamedTuple):
    """What was computed of a shard: the replies of clients, and why others have none.

    `updates` and `second` are the flat models of a training, in the rows that the replies name.
    """

    replies: Mapping[str, Reply]
    refused: Mapping[str, str]
    updates: NDArray[Any] | None = None
    second: NDArray[Any] | None = None


class _Unscreened(LocalClients):
    """Clients that leave their replies to the screening in the server's process."""

    replies: Mapping[str, Reply]

    def hand_over(self, trained: Trained, replies: Mapping[str, Reply]) -> None:
        self.replies = replies

    def evaluated(self, reports: Mapping[str, Mapping[str, int | float]], refused: Refusals) -> Replies:
        self.replies = {name: Reply(row, dict(metrics), {}, {}) for row, (name, metrics) in enumerate(reports.items())}
        return Replies(metrics={}, refused=refused)


class _Stacked(_Unscreened, StackedClients):
    """The clients of a shard, a block of them at once."""


class _OneByOne(_Unscreened, LoopClients):
    """The clients of a shard, one after the other."""


class ShardWorker:
    """A Ray actor, which computes shards, in the server's working directory `here` and with its module `paths`."""

    def __init__(self, here: str, paths: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            os.chdir(here)
        sys.path += [path for path in paths if path not in sys.path]
        self._clients: _Stacked | _OneByOne

    def begin(self, method: Method, settings: RunSettings, block: int) -> None:
        """Load the task; clients are stacked up to `block` at once, or computed one by one where it is 0."""
        if settings.device == "cpu":
            torch.set_num_threads(1)
        self._clients = _Stacked(method, settings, block) if block else _OneByOne(method, settings)

    def compute(self, call: Call, frozen: Model, names: Sequence[str], kept: Mapping[str, Starts]) -> Share:
        """Compute these clients, which go on from what they have kept; the call's model lacks its frozen arrays."""
        clients, terms, received = self._clients, call.terms, {**frozen, **call.model}
        matrices: list[NDArray[Any]] = []
        clients.method = call.method
        clients.begin(names, terms)
        for name in names:
            versions = kept.get(name, {}).items()
            clients.states(name).load({each: {of: clients.on_device(arrays)} for each, (of, arrays) in versions})
        if call.work == "count":
            return self._count(names)
        if call.work == "evaluate":
            replies = clients.evaluate(names, received, terms, call.participants)
        else:
            replies = trained = clients.train(names, received, terms, call.sent)
            matrices = [np.asarray(each.matrix) for each in (trained.updates, trained.second) if each is not None]
            clients.replies = {
                name: reply._replace(made=pack_made(clients.states(name), terms.server_round))
                for name, reply in clients.replies.items()
            }
        for name in names:
            clients.states(name).load({})
        return Share(clients.replies, replies.refused.reasons, *matrices)

    def _count(self, names: Sequence[str]) -> Share:
        refused = Refusals(0)  # a client's reply to the training says so again

        def count(row: int, name: str) -> Reply:
            return Reply(row, {NUM_EXAMPLES: len(self._clients.local(name).splits.train)}, {}, {})

        answers = {name: answer_of(count, row, name) for row, name in enumerate(names)}
        return Share(refuse_failed(answers, refused), refused.reasons)


def asking(method: Method) -> Method:
    """Return a method that asks the same of clients, and neither weighs nor remembers anything."""
    asked = {"needs": method.needs, "second": method.second}
    kind: type[Method] = type("Asking", (Method,), asked)
    return kind(
        buffers=method.buffers, shared=method.shared, frozen=method.frozen, weighted_by_key=method.weighted_by_key
    )

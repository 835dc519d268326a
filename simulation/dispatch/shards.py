"""A worker of a Ray cluster, which computes the shards of rounds that it is given; it needs no Ray to do so."""

import contextlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Reports, Trained
from fairbloom.rounds.method import Method
from fairbloom.rounds.updates import Model

from ..clients import LocalClients, Reply, arrays_of
from ..loop import LoopClients
from ..stacked.clients import StackedClients

Personal = Mapping[str, Model]
"""Personal models by client."""


class Asked(NamedTuple):
    """What a call is about, the same for all shards.

    Attributes
    ----------
    method
        What of the method concerns the clients.
    model
        The global model.
    terms
        Of the work.
    """

    method: Method
    model: Model
    terms: Terms


class Share(NamedTuple):
    """What the clients of a shard reply to a round's training.

    Attributes
    ----------
    updates, snapshots
        Their flat models, a row each, and those in the midst of the work, where they were asked for.
    replies
        By client, with its row.
    personal
        The personal models that the round has made.
    refused
        Why others have no reply.
    """

    updates: NDArray[Any]
    snapshots: NDArray[Any] | None
    replies: Mapping[str, Reply]
    personal: Personal
    refused: Mapping[str, str]


class _Raw(LocalClients):
    """Clients whose replies the server's process takes in."""

    replies: Mapping[str, Reply]

    def hand_over(self, trained: Trained, replies: Mapping[str, Reply]) -> None:
        self.replies = replies


class _Stacked(_Raw, StackedClients):
    """The clients of a shard, a block of them at once."""


class _OneByOne(_Raw, LoopClients):
    """The clients of a shard, one after the other."""


class Worker:
    """A Ray actor, which computes shards.

    Parameters
    ----------
    here
        The server's working directory; where this machine has it, it is this process's too.
    paths
        Where the server looks for modules.
    """

    def __init__(self, here: str, paths: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            os.chdir(here)
        sys.path += [path for path in paths if path not in sys.path]
        self._clients: _Stacked | _OneByOne | None = None

    def begin(self, method: Method, settings: RunSettings, block: int) -> None:
        """Load the task; clients are stacked up to `block` at once, or computed one by one where it is 0.

        Raises
        ------
        FairbloomError
            When the task cannot be loaded here.
        """
        if settings.device == "cpu":
            torch.set_num_threads(1)
        self._clients = _Stacked(method, settings, block) if block else _OneByOne(method, settings)

    def sizes(self, names: Sequence[str]) -> list[int]:
        """Return how many training examples each client has; 0 where they cannot be read, as its reply will tell."""
        found = []
        for name in names:
            try:
                found.append(len(self.clients.local(name).splits.train))
            except Exception:
                found.append(0)
        return found

    def train(self, asked: Asked, names: Sequence[str], personal: Personal) -> Share:
        """Let these clients train."""
        terms, clients = asked.terms, self._with(asked, names, personal, before=asked.terms.server_round)
        trained = clients.train(names, asked.model, terms)
        made = self._taken(names, terms) if terms.personal_lambda is not None else {}
        snapshots = None if trained.snapshots is None else np.asarray(trained.snapshots.matrix)
        matrix = np.asarray(trained.updates.matrix)
        return Share(matrix, snapshots, clients.replies, made, trained.refused.reasons)

    def evaluate(
        self, asked: Asked, names: Sequence[str], personal: Personal, participants: Collection[str]
    ) -> tuple[Reports, Mapping[str, str]]:
        """Let these clients evaluate; return what they report, and why others cannot."""
        terms, clients = asked.terms, self._with(asked, names, personal, before=asked.terms.server_round + 1)
        replies = clients.evaluate(names, asked.model, terms, participants)
        if terms.personal_lambda is not None:
            self._taken(names, terms)
        return replies.metrics, replies.refused.reasons

    @property
    def clients(self) -> _Stacked | _OneByOne:
        """Those who compute."""
        if self._clients is None:
            raise RuntimeError("a worker is told of its run by begin, before anything else")
        return self._clients

    def _with(self, asked: Asked, names: Sequence[str], personal: Personal, before: int) -> _Stacked | _OneByOne:
        """Return the clients, with the personal models that they have before round `before`."""
        clients = self.clients
        clients.method = asked.method
        clients.begin(names, asked.terms)
        for name, model in personal.items():
            clients.personal(name).last = (before - 1, clients.on_device(model))
        return clients

    def _taken(self, names: Sequence[str], terms: Terms) -> Personal:
        """Take the personal models from the clients; return those that this round has made."""
        made: dict[str, Model] = {}
        for name in names:
            personal = self.clients.personal(name)
            if personal.last is not None and personal.last[0] == terms.server_round:
                made[name] = arrays_of(personal.last[1])
            personal.last = None
        return made


def asking(method: Method) -> Method:
    """Return a method that asks the same of clients, and neither weighs nor remembers anything."""
    kind: type[Method] = type("Asking", (Method,), {"needs": method.needs, "snapshots": method.snapshots})
    return kind(buffers=method.buffers, shared=method.shared, weighted_by_key=method.weighted_by_key)

"""A federation of private clients in this process, whose server can be made to forge what it sends."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fairbloom.client.private import torchjd_weights
from fairbloom.private.client import MemoryStore, PrivateClient, Work
from fairbloom.private.errors import RefusedError
from fairbloom.private.keys import Authority, Certificate, Identity, digest, issue, new_signing_key
from fairbloom.private.packing import pack, unpack
from fairbloom.private.rules import Position
from fairbloom.private.server import Answers, Opened, PrivateServer, Task
from fairbloom.private.weighing import GramWeighing, PriorWeighing, Sums, Weighing

Forge = Callable[[str, str, dict[str, Any]], dict[str, Any] | None]
"""(exchange, client, request) → the request that it gets instead; None: the exchange does not reach it."""

MODEL = digest("model")


def honest(exchange: str, client: str, request: dict[str, Any]) -> dict[str, Any]:
    """Change nothing."""
    return request


def no_coefficients(weighing: GramWeighing, names: Sequence[str], sums: Sums) -> np.ndarray[Any, Any]:
    """Return zeros."""
    return np.zeros(len(names))


class Federation:
    """Clients with random updates and losses; `forge` changes what the server sends, `replies` is its transcript."""

    def __init__(self, clients: int = 8, size: int = 50, seed: int = 0, tier: str = "sums", also: str = "") -> None:
        self.tiers = (tier, also)
        random = np.random.default_rng(seed)
        self.secret, public = new_signing_key()
        self.authority = Authority("test", public)
        self.names = [f"client-{number:03}" for number in range(clients)]
        self.updates = {name: random.normal(size=size) * random.uniform(0.5, 2.0) for name in self.names}
        self.metrics = {
            name: {
                "num-examples": float(random.integers(20, 200)),
                "loss-before": float(random.uniform(0.1, 2.0)),
                "accuracy-after": float(random.uniform(0.3, 1.0)),
                "learning-rate": 0.1,
            }
            for name in self.names
        }
        self.clients = {name: self.client(name) for name in self.names}
        self.size, self.forge = size, honest
        self.replies: list[tuple[str, str, dict[str, bytes]]] = []
        self.models: dict[str, bytes] = {}
        self.weigh: Callable[[GramWeighing, Sequence[str], Sums], Any] = no_coefficients

    def client(self, name: str) -> PrivateClient:
        """Return a client with a fresh certificate and an empty memory."""
        private, public = new_signing_key()
        identity = Identity(private, issue(self.secret, "test", name, public, ""))
        return PrivateClient(identity, self.authority, MemoryStore(), self.tiers, torchjd_weights)

    def work(self, name: str) -> Callable[[bytes], tuple[bytes, Work]]:
        """Return what a client's local work makes."""
        return lambda terms: (self.models.get(name, MODEL), Work(self.metrics[name], self.updates[name]))

    def exchange(self, name: str, requests: Mapping[str, Mapping[str, bytes]]) -> Answers:
        """Let clients answer what `forge` makes of the requests."""
        replies, refused = {}, {}
        for client, request in requests.items():
            body = self.forge(name, client, unpack(request["body"]))
            if body is None:
                continue
            try:
                replies[client] = self.clients[client].answer(name, {"body": pack(body)}, self.work(client))
            except RefusedError as error:
                refused[client] = str(error)
            else:
                self.replies.append((name, client, replies[client]))
        return Answers(replies, refused)

    def task(self, weighing: Weighing, number: int = 1, attempt: int = 1) -> Task:
        """Return what a round is about."""
        terms = pack({"weighing": weighing.spec()})
        weigh = partial(self.weigh, weighing) if isinstance(weighing, GramWeighing) else None
        position = Position("test", "run", number, attempt, weighing.purpose)
        return Task(position, MODEL, terms, weighing, self.size, (), weigh)

    def run(
        self, weighing: Weighing | None = None, *, number: int = 1, attempt: int = 1, vectors: bool = True
    ) -> Opened:
        """Run a round with all clients."""
        task = self.task(weighing or PriorWeighing(prior="examples"), number, attempt)
        self.server = PrivateServer(task, self.authority, self)
        return self.server.run(self.names, vectors=vectors)


def forged(certificate: Certificate, **fields: Any) -> Certificate:
    """Return a certificate with other fields."""
    return Certificate(**{**vars(certificate), **fields})

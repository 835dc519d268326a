"""Private rounds with all clients in this process: the exchanges of real devices, to show that their sums are right."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fairbloom.client.private import torchjd_weights
from fairbloom.client.states import state_folder
from fairbloom.private.client import MemoryStore, PrivateClient, State, Work, change_of
from fairbloom.private.errors import RefusedError
from fairbloom.private.keys import Authority, Identity, issue, new_signing_key
from fairbloom.private.packing import pack, unpack
from fairbloom.private.server import Answers
from fairbloom.protocol.frozen import digest_arrays
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.updates import Model
from fairbloom.system.files import make_folder, write_private

from .clients import LocalClients


class PrivateLocalClients:
    """The clients of an engine, each behind its half of the protocol.

    Whoever runs this process sees everything that the clients compute.
    """

    def __init__(self, engine: LocalClients, *tiers: str) -> None:
        self._engine, self._tiers = engine, tiers
        self._secret, public = new_signing_key()
        self.authority = Authority("in process", public)
        self._private: dict[str, tuple[PrivateClient, MemoryStore]] = {}
        folder = state_folder(engine.settings)
        self._path = None if folder is None else folder / ".weights"  # no client's folder is called so
        there = self._path is not None and self._path.exists()
        self._weights: State = unpack(self._path.read_bytes()) if self._path is not None and there else {}

    def __getattr__(self, name: str) -> Any:
        """Return what the engine has: all but the exchanges of a round is its own."""
        return getattr(self._engine, name)

    def keep(self, since: int) -> None:
        """Store what is each client's own, the weights of AFL among it."""
        for name, (_, store) in self._private.items():
            self._weights[name] = store.state.get("weights", {})
        if any(self._weights.values()) and self._path is not None:
            make_folder(self._path.parent)
            write_private(self._path, pack(self._weights))
        self._engine.keep(since)

    def ask(
        self, exchange: str, requests: Mapping[str, Mapping[str, bytes]], model: Model | None, terms: Terms
    ) -> Answers:
        """Let clients answer an exchange; at `work` the engine lets all of them work at once."""
        replies, refused = dict[str, Mapping[str, bytes]](), dict[str, str]()
        work: Callable[[str, bytes], tuple[bytes, Work]] = _none_expected
        if model is not None:
            work = self._worked(next(iter(requests.values())), list(requests), model, terms)
        for name, request in requests.items():
            try:
                replies[name] = self._client(name).answer(exchange, request, partial(work, name))
            except RefusedError as error:
                refused[name] = str(error)
        return Answers(replies, refused)

    def _client(self, name: str) -> PrivateClient:
        if name not in self._private:
            private, public = new_signing_key()
            certificate = issue(self._secret, self.authority.federation, name, public, "")
            identity, store = Identity(private, certificate), MemoryStore({"weights": self._weights.get(name, {})})
            client = PrivateClient(identity, self.authority, store, self._tiers, torchjd_weights)
            self._private[name] = client, store
        return self._private[name][0]

    def _worked(
        self, request: Mapping[str, bytes], names: Sequence[str], model: Model, terms: Terms
    ) -> Callable[[str, bytes], tuple[bytes, Work]]:
        """Let the engine train, or evaluate; return what each client's work has made."""
        content = unpack(unpack(request["body"])["terms"])
        digest = bytes.fromhex(digest_arrays(model))
        trains = bool(content["trainable"])
        if trains:
            found: Trained | Replies = self._engine.train(names, model, terms)
        else:
            found = self._engine.evaluate(names, model, terms, ())

        def work(name: str, _: bytes) -> tuple[bytes, Work]:
            if name not in found.metrics:
                raise RefusedError(f"this client leaves the round: {found.refused.reasons.get(name, 'no reason')}")
            metrics = found.metrics[name]
            if not isinstance(found, Trained):
                return digest, Work(metrics)
            place = found.names.index(name)
            row = found.updates.vectors[place]
            update = row.blocks[0][0].astype(np.float64) * float(row.scales[0])
            others = found.updates.others(place)
            changes = [change_of(model[each], others[each]) for each in content["others"]]
            return digest, Work(metrics, update, changes)

        return work


def _none_expected(name: str, content: bytes) -> tuple[bytes, Work]:
    raise RefusedError("no work is asked for in this exchange")

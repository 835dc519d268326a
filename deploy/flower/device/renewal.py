"""A client that replaces its key before it ends, on disk so that a working one is there whatever happens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fairbloom.system.files import sync_folder, write_private, write_public

from ... import pki
from ...device.client import ClientSettings
from ...device.instance import Instance
from .fleet import Fleet, RefusedError, UnknownNodeError

AGAIN_SECONDS = 3600.0
"""The pause after a renewal that failed."""

log = logging.getLogger("flwr")


class Renewal:
    """The next key of a client, in a file beside its key until the server knows it.

    The server replaces the old key when it answers. If the answer does not arrive, it knows the new one alone: both are
    tried then. A key that it refused stays for the next time: an earlier call with it may still be under way.
    """

    def __init__(self, client: ClientSettings, instance: Instance) -> None:
        self._client, self._instance = client, instance
        self._key = Path(client.key)
        self._next = Path(f"{client.key}.new")
        self._begun = self._has_next
        self._asked, self._pause_until = False, 0.0
        self._goes_by_next = False  # the server knows the next key alone

    @property
    def _has_next(self) -> bool:
        return bool(self._client.key) and self._next.exists()

    def ask(self) -> None:
        """Note that the server asks for another key."""
        self._asked = bool(self._client.key) and self._client.renew_keys

    @property
    def is_due(self) -> bool:
        """Whether the key is to be replaced now."""
        return (self._begun or self._asked) and time.monotonic() >= self._pause_until

    def connect(self, fleet: Fleet) -> None:
        """Connect by the key, or by the next one, if that has been sent and the server does not know the key."""
        try:
            fleet.connect()
        except RefusedError as refusal:
            if not self._has_next:
                raise
            self._by_next(fleet, fleet.connect, refusal)

    def _by_next(self, fleet: Fleet, call: Callable[[], Any], refusal: RefusedError) -> Any:
        """Return the answer to a call by the next key; raise why the key was refused where this one is, too."""
        fleet.use_key(self._next)
        try:
            answer = call()
        except RefusedError:
            raise refusal from None
        self._begun = self._goes_by_next = True
        return answer

    def run(self, fleet: Fleet) -> None:
        """Replace the key; where that fails, say why, and go on with the old one."""
        try:
            self._run(fleet)
        except UnknownNodeError:
            raise
        except (OSError, RefusedError, pki.PkiError) as error:
            log.warning("the key of this client is not renewed: %s", error)
            self._asked = False  # the server asks again if it is time
            if isinstance(error, RefusedError):
                self._begun = self._goes_by_next
            self._pause_until = time.monotonic() + AGAIN_SECONDS

    def _run(self, fleet: Fleet) -> None:
        keys = pki.read_node_key(self._next) if self._next.exists() else pki.make_node_key()
        write_private(self._next, keys.private)
        self._begun = True
        identity = self._key.with_name("identity")
        asked = pki.KeyPair(b"", keys.public, keys.signing if identity.exists() else b"")
        request = pki.write_request(asked, self._client.name or "client")
        try:
            answer = fleet.renew(request)
        except UnknownNodeError as refusal:  # the answer to an earlier call was lost
            answer = self._by_next(fleet, partial(fleet.renew, request), refusal)
        if answer.identity:
            write_public(identity, answer.identity)
        self._next.replace(self._key)  # from here on, the next start goes by the new key
        sync_folder(self._key.parent)
        fleet.use_key(self._key)
        self._instance.hold(self._client.key)
        self._begun = self._asked = self._goes_by_next = False
        log.info("the key of this client is renewed, and good until %s", answer.expires)

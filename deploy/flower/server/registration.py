"""The keys that the SuperLink's database knows, brought to what the operator's files say.

A database that was deleted, or brought back from an older copy, lacks keys of clients that are enrolled, and may know
keys of clients that have been revoked since.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from fairbloom.logs import log

from ... import pki
from ...errors import DeployError
from ...operator import audit
from ...operator.registry import Registry
from ...processes import first_names
from .run_state import RunState


def register_enrolled(state: RunState, registry: Registry, state_folder: Path) -> None:
    """Register enrolled keys that are missing, under their old numbers; unregister revoked ones."""
    enrolled = registry.keys()
    for key in enrolled:  # first: the key before of a node that has renewed it is not to be struck off with the node
        if state.replace_key(int(key.node_id), pki.registered_form(key.public_key.encode())):
            _note(state_folder, "key renewed again", client=key.client, **{"node-id": key.node_id})
    for public_key in registry.revoked_keys():
        if state.strike_off(pki.registered_form(public_key.encode())):
            _note(state_folder, "key struck off again", key=pki.fingerprint(public_key.encode()))
    again = []
    for key in enrolled:
        if state.register(pki.registered_form(key.public_key.encode()), key.client, int(key.node_id)):
            _note(state_folder, "key registered again", client=key.client, **{"node-id": key.node_id})
            again.append(key.client)
    if again:
        log.warning("the database did not know %s: registered again", first_names(dict.fromkeys(again)))


class StateNodes:
    """The nodes that a SuperLink's state lets in, as enrolling sees them."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def register(self, name: str, public_key: bytes) -> str:
        """Register a client's public key, in OpenSSH format; return the number of its node."""
        try:
            return str(self._state.add_node(pki.registered_form(public_key), name))
        except ValueError as error:
            raise DeployError(f"the key of client {name} cannot be registered: {error}") from None

    def unregister(self, node_id: str) -> None:
        """Take back a key that was just registered."""
        self._state.remove_new(int(node_id))

    def replace_key(self, node_id: str, public_key: bytes) -> None:
        """Let a node in by another key, and by the one before no longer."""
        key, node = pki.registered_form(public_key), int(node_id)
        if not self._state.replace_key(node, key) and self._state.get_node_id_by_public_key(key) != node:
            raise DeployError(f"node {node_id} cannot have this key: it is another one's")


def _note(folder: Path, event: str, **about: str) -> None:
    with contextlib.suppress(OSError):  # as on a full disk: the keys are worth more than the line
        audit.note(folder, event, **about)

"""The keys that the SuperLink's database knows, brought to what the operator's files say.

A database that was deleted, or brought back from an older copy, lacks keys of clients that are enrolled, and may know
keys of clients that have been revoked since.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from fairbloom.logs import log

from ... import pki
from ...operator import audit
from ...operator.registry import Registry
from ...processes import first_names
from .run_state import RunState


def register_enrolled(state: RunState, registry: Registry, state_folder: Path) -> None:
    """Register enrolled keys that are missing, under their old numbers; unregister revoked ones."""
    for public_key in registry.revoked_keys():
        if state.strike_off(registered_form(public_key)):
            _note(state_folder, "key struck off again", key=pki.fingerprint(public_key.encode()))
    again, enrolled = [], registry.keys()
    for key in enrolled:
        if state.register(registered_form(key.public_key), key.client, int(key.node_id)):
            _note(state_folder, "key registered again", client=key.client, **{"node-id": key.node_id})
            again.append(key.client)
    if again:
        log.warning("the database did not know %s: registered again", first_names(dict.fromkeys(again)))


def registered_form(public_key: str) -> bytes:
    """Return a public key in OpenSSH format as the SuperLink keeps it."""
    key = serialization.load_ssh_public_key(public_key.encode())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _note(folder: Path, event: str, **about: str) -> None:
    with contextlib.suppress(OSError):  # as on a full disk: the keys are worth more than the line
        audit.note(folder, event, **about)

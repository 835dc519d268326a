"""The keys that the SuperLink's database knows, brought to what the operator's files say.

A database that was deleted, or brought back from an older copy, lacks keys of clients that are enrolled, and may know
keys that have been revoked or replaced since.
"""

from __future__ import annotations

from fairbloom.logs import log

from ... import pki
from ...operator.registry import Registry
from ...processes import first_names
from ...server.refusals import log_event
from .run_state import RunState


def register_enrolled(state: RunState, registry: Registry) -> None:
    """Register enrolled keys that are missing, under their old numbers; strike off all others."""
    enrolled, again = registry.enrolled(), list[str]()
    for client in enrolled:
        key = pki.registered_form(client.public_key.encode())
        if state.register(key, client.name, int(client.node_id)):
            again.append(client.name)
    for node_id in state.strike_off_others({int(client.node_id) for client in enrolled}):
        log_event("key struck off again", **{"node-id": str(node_id)})
    if again:
        log.warning("the database did not know %s: registered again", first_names(again))

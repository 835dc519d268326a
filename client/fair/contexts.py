"""The state of a client's context, and the client's own arrays in it.

Flower keeps `context.state` for one run of its own. A run folder is continued by another one, so in
Flower's simulation it keeps the states.
"""

import copy
import sys
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fairbloom.flower import ClientAppCallable
from fairbloom.protocol import names as wire
from fairbloom.protocol.terms import Terms
from fairbloom.recorddict import deserialize, serialize
from fairbloom.system.versions import Point, Versions

from ..rules.personal import PersonalParameters

# The key of the versions of a context's state.
STATE = "context"

# The record of the context that holds the arrays which the client keeps for itself.
RECORD = f"kept:{wire.PERSONAL}"


def keep_context(message: Message, context: Context, handler: ClientAppCallable) -> Message:
    """Call a handler with the state that the client had before this work; keep the one after it.

    Outside a simulation, only reply whether there is a state: a server's message must name no
    folder of a device.
    """
    config = next(
        (record for record in message.content.config_records.values() if wire.RUN_FOLDER in record),
        None,
    )
    if config is None:
        return handler(message, context)
    versions: Versions | None = None
    folder = Path(str(config.get(wire.CONTEXTS, "")))
    if wire.CONTEXTS in config and is_on_ray() and folder.is_dir():
        versions = Versions(folder / str(context.node_config["partition-id"]))
    work = wire.WORK_OF_ROUND.index(message.metadata.message_type.partition(".")[0])
    step = Point(int(str(config["server-round"])), work)
    before = b""
    if versions is not None:
        found = versions.rewind(STATE, step)
        context.state = deserialize(b"" if found is None else found[1])
    reply = handler(message, context)
    if reply.has_error():
        return reply
    if versions is not None:
        after = serialize(context.state)
        if after != before:
            versions.save(STATE, step, after)
    about = reply.content.config_records.get(wire.CLIENT, ConfigRecord())
    reply.content[wire.CLIENT] = ConfigRecord(
        {**about, wire.CONTEXT_STATE: bool(context.state) and versions is None}
    )
    return reply


def is_on_ray() -> bool:
    """Return whether this process is one of Flower's simulation, on the server's machine."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def give_own(message: Message, context: Context, terms: Terms) -> Message:
    """Return a message whose first arrays have the client's own values, once it has trained."""
    own = context.state.array_records.get(RECORD)
    if not terms.keeps_arrays or own is None:
        return message
    (key, received), *_ = message.content.array_records.items()
    # Only what the reply leaves out, as the server may have changed its terms.
    left_out = {name: own[name] for name in PersonalParameters(terms).match(own)}
    given = copy.copy(message)
    given.content = RecordDict({**message.content, key: ArrayRecord({**received, **left_out})})
    return given


def keep_own(reply: Message, context: Context, terms: Terms) -> None:
    """Move the arrays that the client keeps from a reply into its context."""
    if not terms.keeps_arrays or reply.has_error():
        return
    kept = ArrayRecord()
    for key, trained in [*reply.content.array_records.items()]:
        names = PersonalParameters(terms).match(trained)
        kept.update({name: trained[name] for name in names if name not in kept})
        reply.content[key] = ArrayRecord(
            {name: array for name, array in trained.items() if name not in names}
        )
    if kept:
        context.state[RECORD] = kept

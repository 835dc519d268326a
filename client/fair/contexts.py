"""The state of a client's context in Flower's simulation, kept in the run folder.

Flower keeps `context.state` for one run of its own. A run folder is continued by another one.
"""

import sys
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fairbloom.flower import ClientAppCallable
from fairbloom.protocol import names as wire
from fairbloom.recorddict import deserialize, serialize
from fairbloom.system.versions import Step, Versions


def keep_context(message: Message, context: Context, handler: ClientAppCallable) -> Message:
    """Call a handler with the state that the client had before this work; keep the one after it.

    Outside a simulation, only reply whether there is a state: a server's message must name no
    folder of a device.
    """
    configs = message.content.config_records.values()
    config = next((each for each in configs if wire.RUN_FOLDER in each), None)
    if config is None:
        return handler(message, context)
    versions: Versions | None = None
    folder = Path(str(config.get(wire.CONTEXTS, "")))
    if wire.CONTEXTS in config and is_on_ray() and folder.is_dir():
        versions = Versions(folder / str(context.node_config["partition-id"]))
    work = wire.WORK_OF_ROUND.index(message.metadata.message_type.partition(".")[0])
    step = Step(int(str(config["server-round"])), work)
    before = b""
    if versions is not None:
        found = versions.rewind(step)
        before = b"" if found is None else found[1]
        context.state = deserialize(before) if before else RecordDict()
    reply = handler(message, context)
    if reply.has_error():
        return reply
    if versions is not None and (after := serialize(context.state)) != before:
        versions.save(step, after)
    about = reply.content.config_records.get(wire.CLIENT, ConfigRecord())
    is_lost = bool(context.state) and versions is None
    reply.content[wire.CLIENT] = ConfigRecord({**about, wire.CONTEXT_STATE: is_lost})
    return reply


def is_on_ray() -> bool:
    """Return whether this process is one of Flower's simulation, on the server's machine."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())

"""The parts of Flower in use outside its documented API.

No other module imports Flower from elsewhere than flwr.app, flwr.clientapp and flwr.serverapp. A
name that a version of Flower lacks is missed only by the function that needs it.
`python -m fairbloom.flower` prints whether the installed Flower has each.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, Metadata, RecordDict
from google.protobuf import descriptor_pool, message_factory
from httpx import HTTPStatusError, TransportError  # what Flower's grid raises

from fairbloom.errors import FairbloomError, describe_online

__all__ = [
    "ClientAppCallable", "HTTPStatusError", "MissingNameError", "Mod", "ObjectPushError",
    "SimulationError", "TransportError", "address", "empty_run", "from_proto", "identify",
    "is_simulation", "node_info", "set_message_id", "to_proto",
]  # fmt: skip

# The types of an app and of its mods.
ClientAppCallable = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, ClientAppCallable], Message]

# The names that have no substitute, and their uses.
MESSAGE_ID = "flwr.app.Metadata._message_id"
FROM_PROTO = "flwr.common.serde.recorddict_from_proto"
TO_PROTO = "flwr.common.serde.recorddict_to_proto"
IDENTITY = "flwr.supercore.task_identity.TaskIdentity"
NEEDED: Mapping[str, str] = {
    TO_PROTO: "to send messages to real nodes",
    FROM_PROTO: "to read messages of real nodes",
    IDENTITY: "to write messages in one process and on real nodes",
    MESSAGE_ID: "to match replies in one process and on real nodes",
}

# The names that something of ours replaces in their absence.
PUSH_ERROR = "flwr.supercore.inflatable.inflatable_utils.ObjectPushError"
RUN = "flwr.supercore.run.Run"
OPTIONAL: Mapping[str, str] = {
    RUN: "the run of a grid; otherwise one with its run_id only",
    PUSH_ERROR: "to send a message again; otherwise such an error ends the run",
}

# The names that are compared or looked up in Protocol Buffers, and not imported.
NODE = "flwr.proto.NodeInfo"
SIMULATION = "flwr.superlink.grid.inmemory_grid.InMemoryGrid"
BY_NAME: Mapping[str, str] = {
    NODE: "a node's id and name in get_nodes; otherwise an object with only these",
    SIMULATION: "to end a simulation with too few nodes at once; otherwise it waits for them",
}

# The versions of Flower that are known to have all of these names.
OLDEST = "1.39"
NEWEST = "1.42"


class MissingNameError(FairbloomError):
    """The installed Flower lacks a name outside its documented API."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Flower {version('flwr')} has no {name}, which Fairbloom needs {NEEDED[name]}: install"
            f" a version from {OLDEST} to {NEWEST}, as in pip install 'flwr~={NEWEST}.0'"
        )


def find(name: str) -> Any:
    """Return a name of Flower's, None if the installed version lacks it."""
    module, _, attribute = name.rpartition(".")
    with suppress(ImportError):
        return getattr(importlib.import_module(module), attribute, None)
    return None


def require(name: str) -> Any:
    """Return a name of FOUND; raise MissingNameError if the installed Flower lacks it."""
    found = FOUND[name]
    if found is None:
        raise MissingNameError(name)
    return found


FOUND = {name: find(name) for name in (TO_PROTO, FROM_PROTO, IDENTITY, RUN, PUSH_ERROR)}


class NoPushError(Exception):
    """Stands for Flower's ObjectPushError in its absence; nothing raises it."""


ObjectPushError: type[Exception] = FOUND[PUSH_ERROR] or NoPushError


def to_proto(content: RecordDict) -> bytes:
    """Return a message's content in Flower's wire format."""
    return bytes(require(TO_PROTO)(content).SerializeToString())


def from_proto(data: bytes) -> RecordDict:
    """Return the content that `to_proto` was given; errors are Protocol Buffers'."""
    message = type(require(TO_PROTO)(RecordDict())).FromString(data)
    content: RecordDict = require(FROM_PROTO)(message)
    return content


def identify(*, run_id: int, node_id: int, task_id: int) -> None:
    """Give this process an identity, which Flower stamps on the messages that it writes."""
    identity = require(IDENTITY)
    identity.run_id = run_id
    identity.node_id = node_id
    identity.task_id = task_id


def node_info(node_id: int, name: str) -> Any:
    """Return a node of `Grid.get_nodes`."""
    return (find_message(NODE) or SimpleNamespace)(node_id=node_id, name=name)


def find_message(name: str) -> Any:
    """Return a message of Protocol Buffers that Flower has loaded, or None."""
    with suppress(KeyError):
        return message_factory.GetMessageClass(
            descriptor_pool.Default().FindMessageTypeByName(name)
        )
    return None


def empty_run(run_id: int) -> Any:
    """Return a run of which only its number is known."""
    return getattr(FOUND[RUN], "create_empty", SimpleNamespace)(run_id=run_id)


def is_simulation(grid: object) -> bool:
    """Return whether a grid is that of Flower's simulation: its nodes are fixed."""
    return type(grid).__name__ == SIMULATION.rpartition(".")[2]


class SimulationError(FairbloomError):
    """A grid with fixed nodes has too few; `remedy` names a setting with which these are enough.

    Without `in_process`, the grid is that of Flower's simulation.
    """

    def __init__(self, online: int, wanted: int, remedy: str, *, in_process: bool = False) -> None:
        more = (
            "no others come in Flower's simulation: run it with --federation-config"
            f" num-supernodes={wanted}"
        )
        if in_process:
            more = f"no others come in this process: give InProcessGrid clients={wanted}"
        super().__init__(f"{describe_online(online, wanted)}, and {more}, or {remedy}")


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as Flower's grids do."""
    if not put_message_id(message.metadata, message_id):
        raise MissingNameError(MESSAGE_ID)


def put_message_id(metadata: Metadata, message_id: str) -> bool:
    """Write an id, for which Flower has no setter; return whether Flower reads it there."""
    with suppress(AttributeError, KeyError, TypeError):
        vars(metadata)["_message_id"] = message_id
        return metadata.message_id == message_id
    return False


def address(reply: Message, message: Message) -> Message:
    """Return a reply to this message: some of Flower's mods answer their app's reply."""
    answers = reply.metadata.reply_to_message_id == message.metadata.message_id
    return reply if answers or not reply.has_error() else Message(reply.error, reply_to=message)


def has_name(name: str) -> bool:
    """Return whether the installed Flower has one of the names of this module."""
    if name == MESSAGE_ID:
        return put_message_id(Metadata.__new__(Metadata), "1")
    return (find_message(name) if name == NODE else find(name)) is not None


def main() -> int:
    """Print the names and whether Flower has each; return 1 if it lacks one without substitute."""
    print(f"Flower {version('flwr')}")
    for title, names in (
        ("needed", NEEDED),
        ("replaced in their absence", OPTIONAL),
        ("not imported", BY_NAME),
    ):
        print(f"\n{title}:")
        for name, use in names.items():
            print(f"  {'yes' if has_name(name) else 'NO ':3}  {name}: {use}")
    return int(not all(map(has_name, NEEDED)))


if __name__ == "__main__":
    sys.exit(main())

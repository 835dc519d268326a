"""Messages of a run as they travel: a head, a tree of parts, and the parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Error, Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import message_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fairbloom.flower import set_message_id


@dataclass(frozen=True)
class Task:
    """A message with all that is needed to answer it: its run, and what the app keeps of it, in Flower's wire format.

    `bundle` has the app and the settings that came with the run (FAB).
    """

    node: int
    run: bytes
    bundle: bytes
    message_id: str
    parts: Mapping[str, bytes]
    state: bytes = b""


@dataclass(frozen=True)
class Answer:
    """A reply as it is sent, and what the app keeps after it: None for what it had before."""

    head: bytes
    tree: bytes
    parts: Mapping[str, bytes] = field(repr=False)
    state: bytes | None = None


def unpack(task: Task) -> Message:
    """Return the message of a task."""
    message: Any = inflate_object_from_contents(task.message_id, dict(task.parts))
    set_message_id(message, task.message_id)
    return cast(Message, message)


def pack(reply: Message, state: bytes | None = None) -> Answer:
    """Return a reply as it is sent."""
    set_message_id(reply, reply.object_id)
    head = message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)
    with no_object_id_recompute():
        tree = get_object_tree(reply)
        parts = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
    return Answer(head.SerializeToString(), tree.SerializeToString(), parts, state)


def pack_error(head: message_pb2.Message, code: int, reason: str) -> Answer:
    """Return an error as the answer to the message with this head."""
    return pack(Message(Error(code, reason), reply_to=message_from_proto(head)))

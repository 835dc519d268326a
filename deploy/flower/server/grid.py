"""A run's way to its SuperLink: Flower's grid, but all messages of a round go in one call, and all replies in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import runtime_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fairbloom.flower import set_message_id

from .. import exchange_pb2
from ..relied_on import RUN_SERVERAPP, look_up
from ..whole import identifiers, pack_parts

SEND_PATH, COLLECT_PATH = "/v1/runtime/fairbloom/send", "/v1/runtime/fairbloom/collect"
"""Paths of our two calls; Flower's runtime API keeps its own."""

LARGEST_CALL = 64 << 20
"""Most bytes of parts in one call, and in its answer; one part at least."""

UNREADABLE_REPLY = 422
"""Code of the error that takes the place of a reply which cannot be read; Flower's own codes are below 100."""

WAIT_SECONDS = 60.0
"""How long a call may take, its wait for replies not counted: the SuperLink may be busy, or its disk slow."""


class WholeGrid(look_up(RUN_SERVERAPP, "HttpGrid")):  # type: ignore[misc]
    """Sends messages whole and collects replies whole; after faults, calls are made again as Flower makes its own."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return their ids, "" for one that the SuperLink does not take."""
        heads, trees, parts = [], [], dict[str, bytes]()
        with no_object_id_recompute():
            for message in messages:
                set_message_id(message, message.object_id)
                heads.append(message_to_proto(remove_content_from_message(message)))
                trees.append(get_object_tree(message))
                for name, part in get_all_nested_objects(message).items():
                    if name not in parts:
                        parts[name] = part.deflate()
        if not heads:
            return []
        request = runtime_pb2.PushAppMessagesRequest(messages_list=heads, message_object_trees=trees)
        missing = parts
        while True:
            *before, last = batches({name: len(part) for name, part in missing.items()})
            for names in before:
                self._make(SEND_PATH, exchange_pb2.SendRequest(parts=pack_parts(parts, names)))
            sent = exchange_pb2.SendRequest(sent=request.SerializeToString(), parts=pack_parts(parts, last))
            answer = runtime_pb2.PushAppMessagesResponse.FromString(self._make(SEND_PATH, sent).sent)
            if not answer.objects_to_push:
                return list(answer.message_ids)
            wanted = {*answer.objects_to_push}  # deleted since, with another message
            missing = {name: part for name, part in parts.items() if name in wanted}

    def wait_for_replies(self, message_ids: Iterable[str], number: int, seconds: float) -> None:
        """Return once `number` of these messages are answered, or after `seconds`."""
        request = exchange_pb2.CollectRequest(messages=message_ids, wait_for=number, seconds=seconds)
        self._make(COLLECT_PATH, request, seconds)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have come."""
        request = exchange_pb2.CollectRequest(messages=message_ids)
        if not request.messages:
            return []
        answer = self._make(COLLECT_PATH, request)
        replies = runtime_pb2.PullAppMessagesResponse.FromString(answer.replies)
        here = {part.id: part.content for part in answer.parts}
        found = list[Message]()
        for head, tree in zip(replies.messages_list, replies.message_object_trees, strict=True):
            names = [*dict.fromkeys(identifiers(tree))]
            while missing := [name for name in names if name not in here]:
                more = self._make(COLLECT_PATH, exchange_pb2.CollectRequest(parts=missing)).parts
                if not more:
                    break
                here.update({part.id: part.content for part in more})
            if not missing:  # else it broke off, or was deleted
                found.append(read_reply(head, {name: here[name] for name in names}))
        if found:
            received = [message.metadata.message_id for message in found]
            answered = [message.metadata.reply_to_message_id for message in found]
            self._make(COLLECT_PATH, exchange_pb2.CollectRequest(messages=answered, received=received))
        return found

    def _make(self, path: str, request: Any, seconds: float = 0.0) -> Any:
        kind = exchange_pb2.SendResponse if path == SEND_PATH else exchange_pb2.CollectResponse
        return self._runtime_client._unary_unary(
            path=path, rpc_method=path, request=request, response_type=kind, timeout=WAIT_SECONDS + seconds
        )


def read_reply(head: Any, parts: Mapping[str, bytes]) -> Message:
    """Return a reply to what its head says, which the SuperLink has checked: its parts could name another client's.

    An error takes the place of one that cannot be read.
    """
    about = message_from_proto(head).metadata
    try:
        reply: Any = inflate_object_from_contents(about.message_id, dict(parts))
        if reply.has_error():
            return make_message(metadata=about, error=reply.error)
        return make_message(metadata=about, content=reply.content)
    except Exception as error:  # whatever a client's bytes raise
        reason = f"the reply cannot be read ({type(error).__name__})"
        return make_message(metadata=about, error=Error(UNREADABLE_REPLY, reason))


def batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Give names in lists that one call may have; one that is larger is alone."""
    batch, total = list[str](), 0
    for name, size in sizes.items():
        if batch and total + size > LARGEST_CALL:
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += size
    yield batch

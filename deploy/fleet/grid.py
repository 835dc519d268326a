"""Flower's `Grid` of a run, over the pipe to the server that started this process."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairbloom.flower import ErrorCode, NodeInfo, Run, deserialize, serialize, set_message_id
from fairbloom.logs import log

from .mailbox import Collected, Envelope
from .messages import id_of

# Code of the error that takes the place of a reply which cannot be read; Flower's own codes are
# below 100.
UNREADABLE_REPLY = 422

# Pause until the server is asked again to keep a message for which its disk has no room.
AGAIN_SECONDS = 1.0

# How long one wait for replies takes, and after how long without its device a reply is given up.
LOOK_SECONDS = 1.0
AWAY_SECONDS = 60.0


class RunGrid(Grid):
    """Sends the messages of a run and collects the replies.

    Ids are the same in every process of a run that saves its rounds (`save`): what was answered
    before this process began is not computed again.
    """

    def __init__(self, pipe: Connection, run_id: int) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._run_id = run_id
        self._run: Run | None = None
        self._saves = False
        self._sent: dict[str, Message] = {}
        """Messages without content, by id, that still wait for their replies."""

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """Run information."""
        if self._run is None:
            raise RuntimeError("set_run has not been called")
        return self._run

    def save(self, last: int) -> None:
        """Report that rounds up to `last` are saved; 0: the run will save, so keep replies."""
        self._saves = True
        self._call("save", last)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the devices online."""
        return [node_id for node_id, _ in self._call("nodes")]

    def get_nodes(self) -> list[NodeInfo]:
        """Return the devices online, with the names by which they are enrolled."""
        return [NodeInfo(node_id=node_id, name=name) for node_id, name in self._call("nodes")]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return their ids, "" for a device that is not enrolled."""
        messages = list(messages)
        contents = serialize_once([message.content for message in messages])
        digests = {
            content: hashlib.sha256(content).hexdigest() for content in dict.fromkeys(contents)
        }
        for content in digests:
            said = False
            while (fault := self._call("store", content)) is not None:  # its disk has no room
                if not said:
                    words = "the server cannot keep a message of %d bytes and is asked again: %s"
                    log.warning(words, len(content), fault)
                said = True
                time.sleep(AGAIN_SECONDS)
        names: dict[int, str] = self._call(
            "names", [message.metadata.dst_node_id for message in messages]
        )
        now = time.time()
        for id, sent in [*self._sent.items()]:  # drop expired ones
            if sent.metadata.created_at + sent.metadata.ttl < now:
                del self._sent[id]
        addresses = list[Envelope]()
        for message, content in zip(messages, contents, strict=True):
            name = names.get(message.metadata.dst_node_id)
            set_message_id(message, "")
            if name is not None:
                addresses.append(self._address(message, name, digests[content]))
                set_message_id(message, addresses[-1].id)
                self._sent[addresses[-1].id] = without_content(message)
        self._call("send", addresses)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have come, or errors in their places."""
        ids = list(message_ids)
        replies = list[Message]()
        more = bool(ids)
        while more:
            found, more = self._call("collect", ids)
            replies += [reply for each in found if (reply := self._read(each)) is not None]
            collected = {each.id for each in found}
            ids = [id for id in ids if id not in collected]
        return replies

    def wait_for_replies(self, message_ids: Iterable[str], number: int, seconds: float) -> None:
        """Return once `number` of these messages are answered, or after `seconds`."""
        self._call("wait", list(message_ids), number, seconds)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return the replies that come in time.

        The reply of a device that was offline for AWAY_SECONDS is an error.
        """
        pending = [id for id in self.push_messages(messages) if id]
        replies = list[Message]()
        until = time.monotonic() + (timeout if timeout is not None else float("inf"))
        there = dict[int, float]()
        while pending:
            self.wait_for_replies(
                pending, len(pending), min(LOOK_SECONDS, max(0.0, until - time.monotonic()))
            )
            came = self.pull_messages(pending)
            now = time.monotonic()
            there |= dict.fromkeys(self.get_node_ids(), now)
            answered = {reply.metadata.reply_to_message_id for reply in came}
            for id in [id for id in pending if id not in answered]:
                if now - there.setdefault(self._sent[id].metadata.dst_node_id, now) >= AWAY_SECONDS:
                    words = f"the client was offline for {AWAY_SECONDS:.0f} s"
                    came.append(
                        Message(
                            Error(ErrorCode.NODE_UNAVAILABLE, words), reply_to=self._sent.pop(id)
                        )
                    )
                    answered.add(id)
            replies += came
            pending = [id for id in pending if id not in answered]
            if now >= until:
                break
        return replies

    def _address(self, message: Message, name: str, digest: str) -> Envelope:
        about = message.metadata
        number = round_of(message.content)
        kept = (
            self._saves
            and number > 0
            and about.message_type in (MessageType.TRAIN, MessageType.EVALUATE)
        )
        fixed = id_of(self._run_id, about.message_type, number, name, digest)
        return Envelope(
            id=fixed if kept else secrets.token_hex(16),
            device=name,
            round=number,
            group=about.group_id,
            type=about.message_type,
            digest=digest,
            seconds=about.created_at + about.ttl - time.time(),
            kept=kept,
        )

    def _read(self, reply: Collected) -> Message | None:
        """Return a reply as Flower's message.

        None for one to a message that this process has not sent.
        """
        if (sent := self._sent.pop(reply.id, None)) is None:
            return None
        if reply.data is None:
            return Message(Error(reply.code, reply.reason), reply_to=sent)
        try:
            return Message(deserialize(reply.data), reply_to=sent)
        except Exception as error:  # whatever a device's bytes raise
            words = f"the reply cannot be read ({type(error).__name__})"
            return Message(Error(UNREADABLE_REPLY, words), reply_to=sent)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Ask the server; EOFError where it is gone, with which this process ends."""
        with self._lock:
            self._pipe.send((name, arguments))
            return self._pipe.recv()


def serialize_once(contents: Sequence[RecordDict]) -> list[bytes]:
    """Return each content in Flower's wire format.

    Those with the same arrays and equal other records are made once.
    """
    made = dict[object, bytes]()
    found = list[bytes]()
    for content in contents:
        arrays = [(name, id(record)) for name, record in content.array_records.items()]
        others = {
            name: record for name, record in content.items() if name not in content.array_records
        }
        key = (*content, *arrays, serialize(RecordDict(others)))
        if key not in made:
            made[key] = serialize(content)
        found.append(made[key])
    return found


def without_content(message: Message) -> Message:
    """Return a message with this one's metadata that replies can refer to."""
    about = message.metadata
    copy = Message(
        RecordDict(), about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
    )
    set_message_id(copy, about.message_id)
    return copy


def round_of(content: RecordDict) -> int:
    """Return the round that a message belongs to by its config, 0 for none."""
    for config in content.config_records.values():
        number = config.get("server-round")
        if isinstance(number, int) and number > 0:
            return number
    return 0

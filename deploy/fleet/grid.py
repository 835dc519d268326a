"""Flower's `Grid` of a run, over the pipe to the server that started this process."""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict

from fairbloom.flower import node_info, set_message_id
from fairbloom.logs import log
from fairbloom.protocol.names import RUN_FOLDER
from fairbloom.recorddict import deserialize, serialize, serialize_in_pieces
from fairbloom.server.polling import OwnGrid, PollingGrid

from ..processes import free_cycles
from .content import Content, open_on_disk, write
from .mailbox import Collected, Envelope
from .messages import Buffer, id_of
from .passing import receive, send

# Code of the error that replaces a reply which cannot be read. Flower's codes are below 100.
UNREADABLE_REPLY = 422

# A client with this number of unreadable replies in a run gets no further message of it.
MAX_UNREADABLE = 3

# What a reply may have more than its message: records, and arrays in each of them.
MORE_ITEMS = 16

# Most arrays in a record of a reply to a message without a round or without arrays: more than a
# whole model has. An own app's message may ask for one.
MAX_ARRAYS = 4_000

# Most values in a record of a reply beyond the message's own. The client decides how many metrics
# there are: scores of each group in up to ten groupings. Reading as many takes about 0.1 s.
MAX_VALUES = 50_000

# Pause in seconds before the server is asked again to store a message for which its disk was full.
AGAIN_SECONDS = 1.0


class RunGrid(OwnGrid):
    """Sends the messages of a run and collects the replies.

    `folder` may hold content that is passed to the server. If the run saves its rounds (`save`), a
    restarted process gives its messages the same ids. Answered messages are then not computed
    again.
    """

    keeps_replies = True
    sees_replies = True

    def __init__(self, pipe: Connection, run_id: int, folder: str) -> None:
        super().__init__(run_id)
        self._pipe = pipe
        self._folder = folder
        self._lock = threading.Lock()
        self._saves = False
        # Whether a reply since the last messages had its content in a file.
        self._has_files = False
        # The unanswered messages by id, without content, with the client's name and the most items
        # of the reply.
        self._sent: dict[str, tuple[Message, str, Mapping[str, int]]] = {}
        # How many replies of each client could not be read. It begins again with the process.
        self._unreadable = Counter[str]()

    def save(self, last: int) -> None:
        """Report that rounds up to `last` are saved; 0: the run will save, so keep replies."""
        self._saves = True
        self._call("save", last)

    def note_wait(self, text: str) -> None:
        """Report for which clients the run waits; "": it no longer does."""
        self._call("note_wait", text)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the devices online."""
        return [node_id for node_id, _ in self._call("nodes")[0]]

    def get_nodes(self) -> list[Any]:
        """Return the devices online, with their enrolled names."""
        return [node_info(node_id, name) for node_id, name in self._call("nodes")[0]]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return their ids, "" for one that is not sent.

        Its device is not enrolled, or has given MAX_UNREADABLE unreadable replies.
        """
        if self._has_files:
            free_cycles()
            self._has_files = False
        messages = list(messages)
        contents = serialize_once([message.content for message in messages])
        different = {id(content): content for content in contents}
        digests = {number: self._store(content) for number, content in different.items()}
        names: dict[int, str] = self._call(
            "names", [message.metadata.dst_node_id for message in messages]
        )[0]
        now = time.time()
        for known, (sent, _, _) in [*self._sent.items()]:  # drop expired messages
            if sent.metadata.created_at + sent.metadata.ttl < now:
                del self._sent[known]
        envelopes = list[Envelope]()
        for message, content in zip(messages, contents, strict=True):
            name = names.get(message.metadata.dst_node_id)
            set_message_id(message, "")
            if name is not None and self._unreadable[name] < MAX_UNREADABLE:
                envelopes.append(self._envelope(message, name, digests[id(content)]))
                set_message_id(message, envelopes[-1].id)
                self._sent[envelopes[-1].id] = without_content(message), name, most_items(message)
        self._call("send", envelopes)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have arrived, errors among them."""
        ids = list(message_ids)
        replies = list[Message]()
        more = bool(ids)
        while more:
            (batch, more), contents = self._call("collect", ids)
            for each, content in zip(batch, contents, strict=True):
                self._has_files |= content.file is not None
                reply = self._read(each, content)
                if reply is not None:
                    replies.append(reply)
            collected = {each.id for each in batch}
            ids = [id for id in ids if id not in collected]
        return replies

    def wait_for_replies(self, message_ids: Iterable[str], number: int, seconds: float) -> None:
        """Return once `number` of these messages are answered, or after `seconds`."""
        self._call("wait", list(message_ids), number, seconds)

    def find_owed(self, message_ids: Iterable[str]) -> list[str]:
        """Return the messages among these that a device works on, or may still begin."""
        owed: list[str] = self._call("owed", list(message_ids))[0]
        return owed

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return the replies that arrive in time, as PollingGrid does."""
        return PollingGrid(self).send_and_receive(messages, timeout=timeout)

    def _store(self, pieces: Sequence[Buffer]) -> str:
        """Have the server store content, and return its digest; wait while its disk is full."""
        logged = False
        while True:
            content = write(pieces, lambda: open_on_disk(self._folder))
            (digest, fault), _ = self._call("store", content=[content])
            if digest:
                return str(digest)
            if not logged:
                log.warning(
                    "the server cannot keep a message of %d bytes and is asked again: %s",
                    content.size,
                    fault,
                )
            logged = True
            time.sleep(AGAIN_SECONDS)

    def _envelope(self, message: Message, name: str, digest: str) -> Envelope:
        metadata = message.metadata
        number = read_round(message.content)
        kept = (
            self._saves
            and number > 0
            and metadata.message_type in (MessageType.TRAIN, MessageType.EVALUATE)
        )
        fixed_id = id_of(self._run.run_id, metadata.message_type, number, name, digest)
        return Envelope(
            # without a fixed id, equal content sent twice is two messages
            id=fixed_id if kept else secrets.token_hex(16),
            device=name,
            round=number,
            group=group_of(message.content, number) or metadata.group_id,
            type=metadata.message_type,
            digest=digest,
            seconds=metadata.created_at + metadata.ttl - time.time(),
            kept=kept,
        )

    def _read(self, reply: Collected, content: Content) -> Message | None:
        """Return a reply as Flower's message, or None if this process did not send its message."""
        found = self._sent.pop(reply.id, None)
        if found is None:
            return None
        sent, name, most = found
        if reply.code:
            return Message(Error(reply.code, reply.reason), reply_to=sent)
        try:
            return Message(deserialize(content.map(), most), reply_to=sent)
        except Exception as error:  # a device's bytes may raise anything
            reason = (
                f"the reply of client {name} cannot be read ({type(error).__name__}:"
                f" {error!s:.200})"
            )
        self._unreadable[name] += 1
        if self._unreadable[name] == MAX_UNREADABLE:
            log.warning(
                "client %s is not asked again in this run: %d of its replies could not be read",
                name,
                MAX_UNREADABLE,
            )
        return Message(Error(UNREADABLE_REPLY, reason), reply_to=sent)

    def _call(
        self, name: str, *arguments: Any, content: Sequence[Content] = ()
    ) -> tuple[Any, list[Content]]:
        """Ask the server; return its answer, and the contents that come with it.

        Raise EOFError if the server has ended, which ends this process too.
        """
        with self._lock:
            send(self._pipe, (name, arguments), content)
            return receive(self._pipe)


def serialize_once(contents: Sequence[RecordDict]) -> list[Sequence[Buffer]]:
    """Return each content in Flower's wire format, in pieces.

    Contents with the same arrays and equal other records are serialized once.
    """
    serialized = dict[object, Sequence[Buffer]]()
    found = list[Sequence[Buffer]]()
    for content in contents:
        arrays = [(name, id(record)) for name, record in content.array_records.items()]
        others = {
            name: record for name, record in content.items() if name not in content.array_records
        }
        key = (*content, *arrays, serialize(RecordDict(others)))
        if key not in serialized:
            serialized[key] = serialize_in_pieces(content)
        found.append(serialized[key])
    return found


def without_content(message: Message) -> Message:
    """Return a copy of a message without its content, for replies to refer to."""
    metadata = message.metadata
    copy = Message(
        RecordDict(),
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )
    set_message_id(copy, metadata.message_id)
    return copy


def most_items(message: Message) -> dict[str, int]:
    """Return how many records a reply may have, and how many arrays and values in each."""
    content = message.content
    arrays = sum(map(len, content.array_records.values()))
    in_round = message.metadata.message_type != MessageType.QUERY and read_round(content) > 0
    return {
        "records": len(content) + MORE_ITEMS,
        "arrays": arrays + MORE_ITEMS if arrays and in_round else MAX_ARRAYS,
        "values": sum(map(len, content.config_records.values())) + MAX_VALUES,
    }


def group_of(content: RecordDict, number: int) -> str:
    """Return the group under which devices keep states, for a message of a run folder; else ""."""
    configs = content.config_records.values()
    return next((f"{each[RUN_FOLDER]!s}/{number}" for each in configs if RUN_FOLDER in each), "")


def read_round(content: RecordDict) -> int:
    """Return the round in a message's config, 0 if it has none."""
    numbers = (config.get("server-round") for config in content.config_records.values())
    return next((each for each in numbers if isinstance(each, int) and each > 0), 0)

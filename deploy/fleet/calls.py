"""A device's calls to the fleet port, repeated after faults."""

import math
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from fairbloom import __version__
from fairbloom.logs import log
from fairbloom.protocol.version import PROTOCOL
from fairbloom.system.machine import half_of_memory
from fairbloom.text import text_if

from ..processes import duration
from .content import MEMORY_FILE_BYTES, Content, MemoryBudget, StoredContent
from .messages import (
    BEAT_SECONDS,
    CHUNK_BYTES,
    HELD_SECONDS,
    MAX_SETTINGS_BYTES,
    SERVICE,
    Start,
    in_chunks,
)
from .wire_pb2 import Chunk, Drop, Head, Taken, Working

# First and longest pause in seconds before a call is repeated. Each pause is multiplied by a random
# number between 0.5 and 1.5, so that devices do not all return at once.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0

# Seconds that the answer to a short call may take.
ANSWER_SECONDS = 30.0

# Seconds that a chunk may take: 1 MiB on a line of 10 kB a second. The first one has twice as many,
# as a run's settings may come with it. Times are checked every CHUNK_CHECK_SECONDS.
CHUNK_SECONDS = 120.0
CHUNK_CHECK_SECONDS = 1.0

# Most characters of an id and of a handler's name, and those that are taken of a server's reason.
MAX_ID = 100
MAX_REASON = 1000

# Most different faults that an outage logs.
MAX_FAULTS = 50

# Flower's types of messages. An app's own handler may follow, as in train.personal.
TYPES = ("train", "evaluate", "query")

GIGABYTE = 1_000_000_000

OPTIONS = (
    # the server's status shows the version, and the server waits for a client of its protocol
    ("grpc.primary_user_agent", f"fairbloom/{__version__} protocol/{PROTOCOL}"),
    # a chunk of content, a run's settings, and the rest of the head
    ("grpc.max_receive_message_length", CHUNK_BYTES + MAX_SETTINGS_BYTES + (64 << 10)),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", int(1000 * LONGEST_PAUSE)),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
)

# Refusals, which would not change if the call were repeated at once.
FINAL = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
)

T = TypeVar("T")


class RefusedError(Exception):
    """A call that the server refused; the message is the server's reason."""


class IncompleteError(Exception):
    """A message that did not arrive as its head announced it."""


@dataclass(frozen=True)
class Received:
    """A message to this device: its head, and its content (a serialized RecordDict).

    `refused` is the reason if this device refuses it from its head; the content is then empty.
    """

    head: Head
    content: Content = field(repr=False)
    refused: str = ""


class Outage:
    """Logs each connection error once, and the reconnection."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said: set[str] = set()

    def fault(self, words: str) -> None:
        """Log a connection error, unless it was logged since the connection was lost."""
        if self._since is None:
            self._since = time.monotonic()
        if words not in self._said and len(self._said) < MAX_FAULTS:
            self._said.add(words)
            log.warning("%s; retrying until it works", words)

    def end(self) -> None:
        """Log that the client is connected again, if an error was logged."""
        if self._since is not None:
            log.warning("back: connected again after %s", duration(time.monotonic() - self._since))
        self._since = None
        self._said.clear()


class Calls:
    """The calls of one device.

    `find_fault` returns the reason why the server cannot be reached, or None. Messages that are too
    large for memory rest in `folder`. `memory` is the
    owner's limit for a message, in gigabytes; 0: half of the machine's memory.
    """

    def __init__(
        self,
        server: str,
        credentials: grpc.ChannelCredentials,
        start: Start,
        outage: Outage,
        find_fault: Callable[[], str | None],
        folder: Path,
        memory: float = 0.0,
    ) -> None:
        self._start = start
        self._outage = outage
        self._find_fault = find_fault
        # for a message, and the one before it
        self._budget = MemoryBudget(folder, 2 * MEMORY_FILE_BYTES)
        self._max_bytes = memory * GIGABYTE or half_of_memory()
        self._channel = grpc.secure_channel(server, credentials, options=OPTIONS)
        self._next: Any = self._channel.unary_stream(
            f"/{SERVICE}/Next", Working.SerializeToString, None
        )
        self._reply: Any = self._channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)
        self._beat: Any = self._channel.unary_unary(
            f"/{SERVICE}/Beat", Working.SerializeToString, Drop.FromString
        )
        # The call being received; its next chunk is due at `_until`.
        self._receiving: Any = None
        self._until = math.inf
        self._closed = threading.Event()
        threading.Thread(target=self._cancel_late, daemon=True).start()

    def connect(self) -> None:
        """Wait until the server lets this client in."""
        self._retry(lambda: self._beat(self._working(), timeout=ANSWER_SECONDS))

    def next(self, settings: str) -> Received | None:
        """Return the next message for this device, or None if none came while the call was held.

        `settings` is the digest of the run settings that this device has.
        """

        def call() -> Received | None:
            chunks = self._next(self._working(settings=settings))
            # a deadline of the whole call would cut long messages on a slow line
            self._until = time.monotonic() + HELD_SECONDS + 2 * CHUNK_SECONDS
            self._receiving = chunks
            try:
                return receive(self._in_time(chunks), self._budget, self._max_bytes)
            finally:
                self._receiving = None
                chunks.cancel()  # no effect on a complete message

        return self._retry(call)

    def reply(self, head: Head, content: Content) -> Taken:
        """Send a reply; its head has size and digest already. Return the server's answer."""
        head.session = self._start.session
        head.process = self._start.process
        head.start = self._start.number
        # enough time for a line of 10 kB a second
        seconds = ANSWER_SECONDS + content.size / 10_000
        taken = self._retry(lambda: self._reply(in_chunks(head, content.pieces()), timeout=seconds))
        return Taken(answer=taken.answer, reason=taken.reason[:MAX_REASON])

    def beat(self, id: str, run: int) -> str:
        """Report that this device works on a message; return why it must drop it, or ""."""
        try:
            drop = self._beat(self._working(id=id, run=run), timeout=BEAT_SECONDS)
        except grpc.RpcError as error:
            # after other errors the next beat may succeed
            return text_if(error.code() in FINAL, reason_of(error))
        return str(drop.reason)[:MAX_REASON]

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        self._channel.close()

    def _working(self, *, id: str = "", run: int = 0, settings: str = "") -> Working:
        return Working(
            session=self._start.session,
            process=self._start.process,
            start=self._start.number,
            id=id,
            run=run,
            settings=settings,
        )

    def _in_time(self, call: Any) -> Iterator[bytes]:
        """Yield a call's chunks; raise IncompleteError if one takes too long."""
        try:
            for chunk in call:
                self._until = time.monotonic() + CHUNK_SECONDS
                yield chunk
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.CANCELLED:
                raise IncompleteError("the server stopped sending") from None
            raise

    def _cancel_late(self) -> None:
        """Cancel a call of which a chunk is late, until this device's connection is closed."""
        while not self._closed.wait(CHUNK_CHECK_SECONDS):
            call = self._receiving
            if call is not None and time.monotonic() > self._until:
                call.cancel()

    def _retry(self, call: Callable[[], T]) -> T:
        """Repeat a call until it succeeds or is refused."""
        pause = FIRST_PAUSE
        while True:
            try:
                result = call()
            except grpc.RpcError as error:
                if error.code() in FINAL:
                    raise RefusedError(reason_of(error)) from None
                self._outage.fault(
                    self._find_fault() or f"the server does not answer ({reason_of(error)})"
                )
            except IncompleteError as error:
                self._outage.fault(str(error))
            else:
                self._outage.end()
                return result
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)
            pause = min(2 * pause, LONGEST_PAUSE)


def reason_of(error: Any) -> str:
    """Return the server's reason for a failed call, cut off after MAX_REASON characters."""
    return str(error.details())[:MAX_REASON]


def receive(
    chunks: Iterable[bytes], budget: MemoryBudget, max_bytes: float = math.inf
) -> Received | None:
    """Return the message in these chunks, None without a chunk.

    A message that is refused from its head, or is of another protocol, is returned before its
    content is read. Raise IncompleteError as soon as the chunks are not what the head announces, or
    cannot be kept.
    """
    rest = iter(chunks)
    begun = next(rest, None)
    if begun is None:
        return None
    try:
        first = Chunk.FromString(begun)
    except DecodeError:
        raise IncompleteError("a message has no head") from None
    head = first.head
    if len(head.id) > MAX_ID:
        raise IncompleteError(f"a message's id has {len(head.id)} characters")
    if head.protocol != PROTOCOL:  # its digest may be another one
        return Received(head, Content())
    try:
        refused = refuse_head(head, max_bytes, budget.folder)
        if refused:
            return Received(head, Content(), refused)
        content = StoredContent(budget, head.size)
        content.append(first.data)
        for chunk in rest:
            if not chunk or content.size > head.size:
                break
            content.append(chunk)
    except OSError as error:
        raise IncompleteError(
            f"a message of {head.size} bytes cannot be kept ({error.strerror})"
        ) from None
    if content.size != head.size or content.digest() != head.digest:
        raise IncompleteError("a message did not come whole")
    return Received(head, content)


def refuse_head(head: Head, max_bytes: float, folder: Path) -> str:
    """Return the reason to refuse a message, only by its head, or "".

    A message above MEMORY_FILE_BYTES rests in `folder`.
    """
    kind, dot, handler = head.type.partition(".")
    if kind not in TYPES or (dot and not handler.isidentifier()) or len(handler) > MAX_ID:
        return f"the message is of an unknown type: this client knows {', '.join(TYPES)}"
    if len(head.settings.encode()) > MAX_SETTINGS_BYTES:
        return (
            f"the run's settings have more than {MAX_SETTINGS_BYTES >> 20} MiB: shorten them, for"
            " example the schema"
        )
    if head.size > max_bytes:
        return (
            f"the message has {head.size / GIGABYTE:.3g} GB, and this device takes at most"
            f" {max_bytes / GIGABYTE:.3g}: its owner may raise it (limits.memory in owner.toml)"
        )
    # otherwise a server could fill the disk, and nothing could be logged
    if head.size > MEMORY_FILE_BYTES and head.size > shutil.disk_usage(folder).free / 2:
        return (
            f"the message has {head.size / GIGABYTE:.3g} GB, more than half of the free space on"
            " the disk of this device's state-dir: make room there"
        )
    return ""

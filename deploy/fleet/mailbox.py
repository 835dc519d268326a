"""Messages for devices and their replies, kept in memory and, beyond a budget, in files."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .messages import APP_CRASHED, CHUNK_BYTES, MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE, slices
from .wire_pb2 import Taken

# Bytes of content that are held in memory, unless federation.toml says otherwise.
MEMORY_BYTES = 256 << 20

# Bytes of replies that are collected in one call; one reply at least.
COLLECT_BYTES = 4 << 20

# How often a device is given a message that it has received whole and not answered.
MOST_TIMES = 3

# How long a message is known after its time: its reply can be collected, and work on it is dropped.
KEPT_SECONDS = 600.0

TIME_OVER = "the message's time is over"


class MemoryBudget:
    """The memory that contents share, and the folder of files for what does not fit."""

    def __init__(self, folder: Path, memory: int = MEMORY_BYTES) -> None:
        self.folder = folder
        self._memory = memory
        self.used = 0

    def take(self, size: int) -> bool:
        """Take memory; return whether there was enough."""
        fits = self.used + size <= self._memory
        self.used += size if fits else 0
        return fits

    def give_back(self, size: int) -> None:
        """Give memory back."""
        self.used -= size


class Content:
    """Bytes that are appended piece by piece, with their number and SHA-256.

    They move to a file without a name, which ends with this process, once they do not fit into the
    room. OSError where the disk is full.
    """

    def __init__(self, room: MemoryBudget) -> None:
        self.size = 0
        self._room = room
        self._held = 0
        self._pieces: list[bytes] = []
        self._file: int | None = None
        self._hash = hashlib.sha256()

    @classmethod
    def of(cls, room: MemoryBudget, data: bytes) -> Content:
        """Return these bytes as content."""
        content = cls(room)
        try:
            for piece in slices(data):
                content.append(piece)
        except BaseException:
            content.close()
            raise
        return content

    @property
    def sha256(self) -> bytes:
        """The digest of the content so far."""
        return self._hash.digest()

    def append(self, piece: bytes) -> None:
        """Add a piece of at most CHUNK_BYTES."""
        if self._file is None and self._room.take(len(piece)):
            self._held += len(piece)
            self._pieces.append(piece)
        else:
            if self._file is None:
                # without a name from the start, or soon
                with tempfile.TemporaryFile(dir=self._room.folder) as file:
                    self._file = os.dup(file.fileno())
                pieces = self._pieces
                self._pieces = []
                for each in pieces:
                    _write(self._file, each)
                self._room.give_back(self._held)
                self._held = 0
            _write(self._file, piece)
        self._hash.update(piece)
        self.size += len(piece)

    def pieces(self) -> Iterator[bytes]:
        """Return the bytes in pieces that fit into a chunk."""
        if self._file is None:
            return iter(self._pieces)
        return self._read(os.dup(self._file))

    def close(self) -> None:
        """Give memory and file back."""
        self._room.give_back(self._held)
        self._held = 0
        self._pieces = []
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self, file: int) -> Iterator[bytes]:
        """Return the pieces in a file of our own: the content may be closed before all are read."""
        try:
            for start in range(0, self.size, CHUNK_BYTES):
                yield os.pread(file, CHUNK_BYTES, start)
        finally:
            os.close(file)


def _write(file: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


@dataclass
class Reply:
    """What a device answered: content, or Flower's code of an error and its reason."""

    content: Content | None
    code: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Envelope:
    """What a run says of a message.

    `round` is 0 where it belongs to none, `group` is Flower's group_id, `digest` names its content,
    `seconds` it has to live; `kept`: its reply stays until its round is saved.
    """

    id: str
    device: str
    round: int
    group: str
    type: str
    digest: str
    seconds: float
    kept: bool


@dataclass
class QueuedMessage:
    """A message in the mailbox, and its reply once there is one.

    `until` is a second of the mailbox's clock.

    `collected` says whether the run has its reply.
    """

    address: Envelope
    run: int
    content: Content
    until: float
    times: int = 0
    working: bool = False
    reply: Reply | None = None
    collected: bool = False


@dataclass(frozen=True)
class Collected:
    """A reply as a run gets it; `data` is None where an error takes its place."""

    id: str
    data: bytes | None
    code: int = 0
    reason: str = ""


class Mailbox:
    """The messages and replies of the runs that are going on; one thread uses it.

    `on_message` is called with the devices that have a new message, `on_reply` with the id of a
    message that is answered.
    """

    def __init__(self, room: MemoryBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self.room = room
        self._clock = clock
        self.on_message: Callable[[Collection[str]], None] = lambda devices: None
        self.on_reply: Callable[[str], None] = lambda id: None
        self._letters: dict[str, QueuedMessage] = {}
        self._open: dict[str, dict[str, QueuedMessage]] = {}
        """The letters that a device has not answered, by device and id, in the order in which they
        were sent."""
        self._contents: dict[str, Content] = {}
        self._uses: dict[str, int] = {}
        self._saved: dict[int, int] = {}
        """The runs that are going on, and the last round that each has saved."""

    # The run's side -------------------------------------------------------------------------------

    def begin(self, run: int) -> None:
        """Begin a run or a new process of it, which forgets messages without a fixed id."""
        self._saved.setdefault(run, 0)
        self._forget(
            letter
            for letter in self._letters.values()
            if letter.run == run and not letter.address.kept
        )

    def end(self, run: int) -> None:
        """Forget a run that is over."""
        self._saved.pop(run, None)
        self._forget(letter for letter in self._letters.values() if letter.run == run)

    def store(self, data: bytes) -> str:
        """Keep content for messages that are sent next; return its digest.

        OSError where the disk is full.
        """
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._contents:
            self._contents[digest], self._uses[digest] = Content.of(self.room, data), 0
        return digest

    def send(self, run: int, addresses: Iterable[Envelope]) -> None:
        """Send messages with stored content.

        One that is here already lives on, with its reply if it has one.
        """
        devices = set[str]()
        for address in addresses:
            until = self._clock() + address.seconds
            if (letter := self._letters.get(address.id)) is not None:
                letter.until = max(letter.until, until)
                continue
            letter = QueuedMessage(address, run, self._contents[address.digest], until)
            self._uses[address.digest] += 1
            self._letters[address.id] = letter
            self._open.setdefault(address.device, {})[address.id] = letter
            devices.add(address.device)
        for digest in [digest for digest, uses in self._uses.items() if not uses]:
            self._release(digest)
        self.on_message(devices)

    def is_answered(self, id: str) -> bool:
        """Return whether nothing more will come for a message: it has its reply, or is unknown."""
        letter = self._letters.get(id)
        return letter is None or letter.reply is not None or letter.until < self._clock()

    def collect(self, ids: Iterable[str]) -> tuple[list[Collected], bool]:
        """Return replies to these messages, up to COLLECT_BYTES, and whether more are here."""
        found = list[Collected]()
        size = 0
        for id in ids:
            letter = self._letters.get(id)
            if letter is None or (letter.reply is None and letter.until < self._clock()):
                found.append(Collected(id, None, MESSAGE_UNAVAILABLE, TIME_OVER))
                continue
            if (reply := letter.reply) is None:
                continue
            if reply.content is None:
                found.append(Collected(id, None, reply.code, reply.reason))
            else:
                size += reply.content.size
                if size > COLLECT_BYTES and size > reply.content.size:
                    return found, True
                found.append(Collected(id, b"".join(reply.content.pieces())))
            letter.collected = True
            if not self._is_kept(letter):
                self._forget([letter])
        return found, False

    def save(self, run: int, last: int) -> None:
        """Forget replies up to the saved round `last`, and withdraw messages not yet begun.

        Of a reply that came too late for its round, the run still learns that it came: its device
        is free again.
        """
        self._saved[run] = max(last, self._saved.get(run, 0))
        old = [
            letter
            for letter in self._letters.values()
            if letter.run == run and letter.address.kept and letter.address.round <= last
        ]
        self._forget(letter for letter in old if letter.collected)
        for letter in old:
            if letter.collected:
                continue
            number = letter.address.round
            if letter.reply is not None:
                if letter.reply.content is not None:
                    letter.reply.content.close()
                letter.reply = Reply(
                    None, NODE_UNAVAILABLE, f"the reply came after round {number} had ended"
                )
            elif not letter.working:
                self._settle(
                    letter,
                    Reply(
                        None, NODE_UNAVAILABLE, f"round {number} ended before this client was there"
                    ),
                )

    def expire(self) -> None:
        """Forget expired messages, some minutes later if a device works on one or answered it."""
        now = self._clock()
        for letter in [letter for letter in self._letters.values() if letter.until < now]:
            used = letter.working or letter.reply is not None
            is_kept = letter.reply is not None and self._is_kept(letter)
            if not is_kept and (not used or letter.until + KEPT_SECONDS < now):
                self._forget([letter])

    # The device's side ----------------------------------------------------------------------------

    def next(self, device: str) -> QueuedMessage | None:
        """Return a device's oldest unanswered message: a device that asks is idle."""
        now = self._clock()
        for letter in list(self._open.get(device, {}).values()):
            letter.working = False
            if letter.until < now:
                continue
            if letter.times < MOST_TIMES:
                return letter
            reason = (
                f"the client received this message {MOST_TIMES} times and was started again each"
                " time"
            )
            self._settle(letter, Reply(None, APP_CRASHED, reason))
        return None

    def find(self, device: str, id: str) -> QueuedMessage | None:
        """Return a message to this device by its id, or None."""
        letter = self._letters.get(id)
        return letter if letter is not None and letter.address.device == device else None

    def answer(self, letter: QueuedMessage, reply: Reply) -> None:
        """Take the reply to a message: the first one counts, unneeded ones are dropped."""
        if letter.reply is None and self._letters.get(letter.address.id) is letter:
            self._settle(letter, reply)
        elif reply.content is not None:
            reply.content.close()

    def judge(self, device: str, id: str, run: int) -> Taken:
        """Return the state of work on a message: wanted (TAKEN), not known yet (LATER), or DROP."""
        letter = self.find(device, id)
        if run not in self._saved:
            return Taken(answer=Taken.DROP, reason="the run is over")
        if letter is None:
            return Taken(answer=Taken.LATER, reason="the server does not ask for this message now")
        if letter.until < self._clock():
            return Taken(answer=Taken.DROP, reason=TIME_OVER)
        return Taken(answer=Taken.TAKEN)

    # Both -----------------------------------------------------------------------------------------

    def _is_kept(self, letter: QueuedMessage) -> bool:
        """Return whether the reply to a message may be asked for again: its round is not saved."""
        return letter.address.kept and letter.address.round > self._saved.get(letter.run, 0)

    def _settle(self, letter: QueuedMessage, reply: Reply) -> None:
        letter.reply = reply
        letter.working = False
        self._open[letter.address.device].pop(letter.address.id, None)
        self.on_reply(letter.address.id)

    def _forget(self, letters: Iterable[QueuedMessage]) -> None:
        for letter in list(letters):
            del self._letters[letter.address.id]
            self._open[letter.address.device].pop(letter.address.id, None)
            if letter.reply is not None and letter.reply.content is not None:
                letter.reply.content.close()
            self._uses[letter.address.digest] -= 1
            if not self._uses[letter.address.digest]:
                self._release(letter.address.digest)

    def _release(self, digest: str) -> None:
        self._contents.pop(digest).close()
        del self._uses[digest]

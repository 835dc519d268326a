"""Messages for devices and their replies, held in memory and, beyond a budget, on the disk."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from fairbloom.protocol.error_codes import ErrorCode

from .content import Content, MemoryBudget, StoredContent
from .wire_pb2 import Taken

# Most bytes of replies without files collected in one call. A single larger reply is collected too.
COLLECT_BYTES = 4 << 20

# How often a device is sent a message that it received in full but did not answer.
MAX_DELIVERIES = 3

# Seconds that an expired message is kept, so that its reply can still be collected.
KEPT_SECONDS = 600.0

TIME_OVER = "the message's time is over"


@dataclass
class Reply:
    """A device's answer: content, or Flower's code of an error and the reason."""

    content: StoredContent | None
    code: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Envelope:
    """A message's metadata, from its run.

    `round` is 0 for a message outside rounds, `group` is Flower's group_id, and `digest` that of
    the stored content. `seconds` is the time to live. `kept` holds the reply until its round is
    saved.
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
    """A message in the mailbox, with its reply once it is answered.

    It expires at `until`, by the mailbox's clock. `deliveries` counts how often the device received
    it in full, and `collected` is True once the run has the reply.
    """

    envelope: Envelope
    run: int
    content: StoredContent
    until: float
    deliveries: int = 0
    reply: Reply | None = None
    collected: bool = False


@dataclass(frozen=True)
class Collected:
    """A reply as a run gets it, apart from its content; an error has a code."""

    id: str
    code: int = 0
    reason: str = ""


class Mailbox:
    """The messages and replies of open runs; only one thread may use it.

    `on_message` is called with the devices that have a new message, `on_reply` with the id of each
    answered message.
    """

    def __init__(self, budget: MemoryBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self._clock = clock
        self.on_message: Callable[[Collection[str]], None] = lambda devices: None
        self.on_reply: Callable[[str], None] = lambda id: None
        self._messages: dict[str, QueuedMessage] = {}
        # The unanswered messages by device and id, in the order in which they were sent.
        self._open: dict[str, dict[str, QueuedMessage]] = {}
        # The id of the message that a device works on, by device. It stays when the message is
        # forgotten: only a device that asks for a message, or has answered, is idle.
        self._at_work: dict[str, str] = {}
        # By digest, each as long as a message has it; `_unsent` holds those of the next messages.
        self._contents = WeakValueDictionary[str, StoredContent]()
        self._unsent = list[StoredContent]()
        # The last saved round of each open run.
        self._saved: dict[int, int] = {}

    # The run's side -------------------------------------------------------------------------------

    def begin(self, run: int) -> None:
        """Begin a run, or a new process of it: forget its messages without a fixed id."""
        self._saved.setdefault(run, 0)
        self._forget(
            message
            for message in self._messages.values()
            if message.run == run and not message.envelope.kept
        )

    def end(self, run: int) -> None:
        """Forget a run that is over."""
        self._saved.pop(run, None)
        self._forget(message for message in self._messages.values() if message.run == run)

    def store(self, given: Content) -> str:
        """Store content for the messages that are sent next; return its digest.

        Raise OSError if the disk is full.
        """
        content = StoredContent.of(self.budget, given)
        digest = content.digest().hex()
        self._unsent.append(self._contents.setdefault(digest, content))
        return digest

    def send(self, run: int, envelopes: Iterable[Envelope]) -> None:
        """Send messages with stored content.

        A message with a known id keeps its reply; only its time to live is extended.
        """
        devices = set[str]()
        for envelope in envelopes:
            until = self._clock() + envelope.seconds
            message = self._messages.get(envelope.id)
            if message is not None:
                message.until = max(message.until, until)
                continue
            message = QueuedMessage(envelope, run, self._contents[envelope.digest], until)
            self._messages[envelope.id] = message
            self._open.setdefault(envelope.device, {})[envelope.id] = message
            devices.add(envelope.device)
        self._unsent.clear()
        self.on_message(devices)

    def owed(self, ids: Iterable[str]) -> list[str]:
        """Return the messages among these that their device works on, or may begin."""
        at_work = {*self._at_work.values()}
        return [id for id in ids if id in at_work or not self.is_answered(id)]

    def is_answered(self, id: str) -> bool:
        """Return whether no reply to a message is pending: it has one, expired, or is unknown."""
        message = self._messages.get(id)
        return message is None or message.reply is not None or message.until < self._clock()

    def collect(self, ids: Iterable[str]) -> tuple[tuple[list[Collected], bool], list[Content]]:
        """Return replies to these messages, up to COLLECT_BYTES, and whether more are waiting.

        Their contents are returned apart, in the same order.
        """
        found = list[Collected]()
        contents = list[Content]()
        size = 0
        for id in ids:
            message = self._messages.get(id)
            if message is None or (message.reply is None and message.until < self._clock()):
                found.append(Collected(id, ErrorCode.MESSAGE_UNAVAILABLE, TIME_OVER))
                contents.append(Content())
                continue
            reply = message.reply
            if reply is None:
                continue
            content = reply.content or Content()
            size += len(content.data)
            if size > COLLECT_BYTES and size > len(content.data):
                return (found, True), contents
            found.append(Collected(id, reply.code, reply.reason))
            contents.append(content)
            message.collected = True
            if not self._is_kept(message):
                self._forget([message])
        return (found, False), contents

    def save(self, run: int, last: int) -> None:
        """Forget replies up to the saved round `last`, and withdraw messages not yet begun.

        A reply that came too late for its round is replaced by an error, so that the run knows that
        the device is free again.
        """
        self._saved[run] = max(last, self._saved.get(run, 0))
        for message in [
            message
            for message in self._messages.values()
            if message.run == run and message.envelope.kept and message.envelope.round <= last
        ]:
            number = message.envelope.round
            if message.collected:
                self._forget([message])
            elif message.reply is not None:
                message.reply = Reply(
                    None,
                    ErrorCode.NODE_UNAVAILABLE,
                    f"the reply came after round {number} had ended",
                )
            elif not self._is_at_work(message):
                self._settle(
                    message,
                    Reply(
                        None,
                        ErrorCode.NODE_UNAVAILABLE,
                        f"round {number} ended before this client was there",
                    ),
                )

    def expire(self) -> None:
        """Forget expired messages, those begun or answered KEPT_SECONDS later."""
        now = self._clock()
        for message in [message for message in self._messages.values() if message.until < now]:
            used = self._is_at_work(message) or message.reply is not None
            is_kept = message.reply is not None and self._is_kept(message)
            if not is_kept and (not used or message.until + KEPT_SECONDS < now):
                self._forget([message])

    # The device's side ----------------------------------------------------------------------------

    def next(self, device: str) -> QueuedMessage | None:
        """Return an idle device's oldest unanswered message, or None."""
        now = self._clock()
        self._at_work.pop(device, None)
        for message in list(self._open.get(device, {}).values()):
            if message.until < now:
                continue
            if message.deliveries < MAX_DELIVERIES:
                return message
            self._settle(
                message,
                Reply(
                    None,
                    ErrorCode.CLIENT_APP_CRASHED,
                    f"the client received this message {MAX_DELIVERIES} times and was started"
                    " again each time",
                ),
            )
        return None

    def begin_work(self, message: QueuedMessage) -> None:
        """Note that a message is sent to its device, which works on it until it asks again."""
        self._at_work[message.envelope.device] = message.envelope.id

    def find(self, device: str, id: str) -> QueuedMessage | None:
        """Return a message to this device by its id, or None."""
        message = self._messages.get(id)
        return None if message is None or message.envelope.device != device else message

    def answer(self, message: QueuedMessage, reply: Reply) -> None:
        """Take the reply to a message; drop it if the message has one already, or is forgotten."""
        if message.reply is None and self._messages.get(message.envelope.id) is message:
            self._settle(message, reply)

    def work_status(self, device: str, id: str, run: int) -> Taken:
        """Return whether a reply is wanted (TAKEN), not known yet (LATER), or unwanted (DROP)."""
        message = self.find(device, id)
        if run not in self._saved:
            return Taken(answer=Taken.DROP, reason="the run is over")
        if message is None:
            return Taken(answer=Taken.LATER, reason="the server does not ask for this message now")
        if message.until < self._clock():
            return Taken(answer=Taken.DROP, reason=TIME_OVER)
        return Taken(answer=Taken.TAKEN)

    # Both -----------------------------------------------------------------------------------------

    def _is_kept(self, message: QueuedMessage) -> bool:
        """Return whether a run may ask for this reply again, because its round is not saved."""
        return message.envelope.kept and message.envelope.round > self._saved.get(message.run, 0)

    def _is_at_work(self, message: QueuedMessage) -> bool:
        return self._at_work.get(message.envelope.device) == message.envelope.id

    def _settle(self, message: QueuedMessage, reply: Reply) -> None:
        message.reply = reply
        if self._is_at_work(message):
            del self._at_work[message.envelope.device]
        self._open[message.envelope.device].pop(message.envelope.id, None)
        self.on_reply(message.envelope.id)

    def _forget(self, messages: Iterable[QueuedMessage]) -> None:
        for message in list(messages):
            del self._messages[message.envelope.id]
            self._open[message.envelope.device].pop(message.envelope.id, None)


def describe_fault(error: OSError | MemoryError) -> str:
    """Return the reason why content cannot be kept or read."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return error.strerror or str(error)

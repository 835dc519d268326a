"""A grid that polls more often than every three seconds and survives a SuperLink restart."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairbloom.flower import (
    HTTPStatusError,
    ObjectPushError,
    TransportError,
    empty_run,
)
from fairbloom.logs import log
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.rounds.courier import Courier, FlowerCourier, courier_of
from fairbloom.rounds.quorum import Quorum
from fairbloom.rounds.records import is_expired
from fairbloom.system.deadline import Deadline

# Shortest and longest pause between two looks for replies; in between, a twentieth of the time
# taken so far.
SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 1.0

# How long a node may be offline before its reply is given up: a network that is away for a minute
# costs no reply. A node that returns gets this long again, or as long as the slowest other node
# took, whichever is longer.
GRACE_SECONDS = 60.0

# How long a call may fail before the run gives up: long enough to clear a disk, or to restart a
# SuperLink.
PATIENCE_SECONDS = 600.0


T = TypeVar("T")


class Absences:
    """The nodes that went offline while their replies were awaited, and since when.

    A node that is back may still have its reply, or may have lost it in a restart. Its reply is
    awaited for `patience` seconds, and without limit before any node has answered.
    """

    def __init__(self) -> None:
        self.patience = math.inf
        # by node: whether it is online, and since when
        self._changes: dict[int, tuple[bool, float]] = {}

    def find_late(self, nodes: set[int], online: set[int], now: float) -> set[int]:
        """Return the nodes that are given up at second `now`."""
        late = set[int]()
        for node in nodes:
            was_online, since = self._changes.get(node, (True, math.inf))
            if was_online != (node in online):
                self._changes[node] = node in online, now
            elif now - since >= (self.patience if was_online else GRACE_SECONDS):
                late.add(node)
        return late


class OwnGrid(Courier):
    """A grid that hands messages to devices itself, in place of Flower's SuperLink."""

    def __init__(self, run_id: int) -> None:
        self._run: Any = empty_run(run_id)

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """Run information."""
        return self._run

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


class PollingGrid(FlowerCourier):
    """Wraps another grid and collects its replies through push and pull.

    `min_replies` replies, errors not counted, end a round's training; 0 waits for all. While fewer
    clients are online than `quorum` needs, deadlines are suspended. Clients that it knows to be
    revoked are not waited for.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        min_replies: int = 0,
        quorum: Quorum | None = None,
    ) -> None:
        super().__init__(grid)
        self._courier = courier_of(grid)
        self._min_replies = min_replies
        self._quorum = quorum or Quorum()
        self._clock = self._quorum.clock
        self.simulated = self._courier.simulated

    @property
    def most_nodes(self) -> int | None:
        """How many nodes there are at most, None if that is unknown."""
        return self._courier.most_nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes online."""
        return self._retry(self._grid.get_node_ids)

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes online."""
        return self._retry(self._grid.get_nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids.

        After a failure all are sent again: the SuperLink recognises duplicates by their content.
        """
        messages = list(messages)
        lifetimes = [message.metadata.ttl for message in messages]

        def push() -> Iterable[str]:
            for message, lifetime in zip(messages, lifetimes, strict=True):
                expiry = self._expiry(message)
                if expiry.is_over:  # while the SuperLink was away
                    message.metadata.ttl = expiry.elapsed + lifetime
            return self._grid.push_messages(messages)

        return self._retry(push)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have come."""
        return self._retry(lambda: self._grid.pull_messages(message_ids))

    def find_owed(self, message_ids: Iterable[str]) -> Iterable[str]:
        """Return the messages among these that clients owe a reply to.

        All of them, if the grid does not know what its clients work on.
        """
        return self._retry(lambda: self._courier.find_owed(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return enough replies, or those that came within `timeout` seconds.

        If the clients that answered would be too few for the quorum, one more minute shows whether
        the others are offline. Messages expire with the deadline, so they are sent again then.
        """
        messages = list(messages)
        kinds = {message.metadata.message_type for message in messages}
        working = MessageType.QUERY not in kinds
        pending = self._send(messages)
        expired: dict[str, Message] = {}
        ends_early = self._min_replies and kinds == {MessageType.TRAIN}
        fewest = self._min_replies if ends_early else math.inf
        wanted = fewest
        deadline = Deadline.after(timeout, self._clock.monotonic)
        longest = deadline.seconds + GRACE_SECONDS
        elapsed = 0.0
        may_expire = False
        absences = Absences()
        replies: list[Message] = []
        while pending:
            online = set(self.get_node_ids())
            replies += self._give_up_revoked(pending, online)
            if working and not self._quorum.is_met(self._quorum.named(online)):
                # The seconds since the last look do not count.
                deadline = replace(deadline, since=deadline.now() - elapsed)
                may_expire = True
            else:
                if may_expire:
                    self._send_again(pending, deadline.left)
                sent = dict(pending)
                came = self._collect(pending, online, absences, deadline.elapsed)
                expired |= expired_of(came, sent)
                replies += came
                wanted = fewest - sum(reply.has_content() for reply in replies)
                if wanted <= 0:
                    break
                elapsed = deadline.elapsed
                if any(reply.has_content() for reply in came):
                    absences.patience = max(GRACE_SECONDS, elapsed)
                if deadline.is_over or not pending:
                    silent = nodes_of(pending | expired)
                    is_extended = deadline.seconds == longest
                    if is_extended or not working or self._is_enough(online - silent):
                        break
                    deadline = replace(deadline, seconds=longest)
                    replies = [each for each in replies if not is_expired(each)]
                    pending |= expired
                    may_expire = True
            if pending:
                self._wait(
                    pending,
                    wanted,
                    min(deadline.left, LONGEST_SECONDS, max(SHORTEST_SECONDS, elapsed / 20)),
                )
        return replies

    def _give_up_revoked(self, pending: dict[str, Message], online: set[int]) -> list[Message]:
        """Give up messages to clients that were revoked; return errors as the replies."""
        revoked = self._quorum.find_revoked(nodes_of(pending) - online)
        return give_up(pending, revoked, "the operator has revoked this client")

    def _is_enough(self, nodes: set[int]) -> bool:
        """Return whether these nodes are as many as the quorum needs."""
        names = self._quorum.named(nodes)
        return len(self._quorum.counted(names)) >= self._quorum.fewest

    def _wait(self, pending: Collection[str], number: float, seconds: float) -> None:
        """Pause before the next look; a grid that sees replies come ends the pause at `number`."""
        if not self._courier.sees_replies:
            self._clock.sleep(seconds)
            return
        fewer = int(min(number, len(pending)))
        longer = min(LONGEST_SECONDS, 10 * seconds)
        self._retry(lambda: self._courier.wait_for_replies(pending, fewer, longer))

    def _send(self, messages: Sequence[Message]) -> dict[str, Message]:
        return {
            sent: message
            for sent, message in zip(self.push_messages(messages), messages, strict=True)
            if sent
        }

    def _send_again(self, pending: dict[str, Message], left: float) -> None:
        """Send again messages that expired, or nearly did, while the run waited for clients.

        Those are messages with less than 2 s to live; they now live for `left` seconds.
        """
        dying = {
            sent: message
            for sent, message in pending.items()
            if self._expiry(message).left < min(2.0, left)
        }
        for sent, message in dying.items():
            message.metadata.created_at = self._clock.time()
            if left < math.inf:
                message.metadata.ttl = left
            del pending[sent]
        if dying:
            pending.update(self._send([*dying.values()]))

    def _collect(
        self, pending: dict[str, Message], online: set[int], absences: Absences, now: float
    ) -> list[Message]:
        """Remove what is answered or given up; return the replies, errors for what is given up.

        Offline nodes are not asked for: the SuperLink would give up the message and refuse its
        reply.
        """
        late = absences.find_late(nodes_of(pending), online, now)
        asked = online | late
        wanted = [
            sent for sent, message in pending.items() if message.metadata.dst_node_id in asked
        ]
        came = list(self.pull_messages(wanted))
        for reply in came:
            pending.pop(reply.metadata.reply_to_message_id, None)
        reason = f"the node was offline for {GRACE_SECONDS:.0f} s, or is back without this reply"
        return came + give_up(pending, late, reason)

    def _expiry(self, message: Message) -> Deadline:
        return Deadline(message.metadata.created_at, message.metadata.ttl, self._clock.time)

    def _retry(self, call: Callable[[], T]) -> T:
        """Retry a call until it succeeds, fails for good, or has failed for `PATIENCE_SECONDS`."""
        deadline: Deadline | None = None
        while True:
            try:
                result = call()
            except Exception as error:
                if not is_temporary(error) or (deadline and deadline.is_over):
                    raise
                if deadline is None:
                    deadline = Deadline.after(PATIENCE_SECONDS, self._clock.monotonic)
                    log.warning(
                        "the SuperLink fails this run, which waits for it up to %.0f minutes: %s",
                        PATIENCE_SECONDS / 60.0,
                        error,
                    )
            else:
                if deadline is not None:
                    log.warning(
                        "the SuperLink works again after %.0f s, and the run continues",
                        deadline.elapsed,
                    )
                return result
            self._clock.sleep(LONGEST_SECONDS)


def nodes_of(pending: Mapping[str, Message]) -> set[int]:
    """Return the nodes that owe replies to these messages."""
    return {message.metadata.dst_node_id for message in pending.values()}


def expired_of(replies: Iterable[Message], sent: Mapping[str, Message]) -> dict[str, Message]:
    """Return the sent messages, by id, that these replies report as expired."""
    ids = [reply.metadata.reply_to_message_id for reply in replies if is_expired(reply)]
    return {each: sent[each] for each in ids}


def give_up(pending: dict[str, Message], nodes: set[int], reason: str) -> list[Message]:
    """Remove the messages to these nodes; return an error as the reply to each."""
    error = Error(ErrorCode.NODE_UNAVAILABLE, reason)
    lost = [sent for sent, message in pending.items() if message.metadata.dst_node_id in nodes]
    return [Message(error, reply_to=pending.pop(sent)) for sent in lost]


def is_temporary(error: Exception) -> bool:
    """Return whether a call may succeed later, such as after a SuperLink's restart.

    Flower itself does not retry after a broken handshake, a busy database, expired messages, or a
    part that is sent twice. An answer that refuses the request (401, 403, 404) is final.
    """
    if isinstance(error, HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, (TransportError, ObjectPushError))

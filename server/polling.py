"""A grid that polls more often than every three seconds and survives a SuperLink restart."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairbloom.flower import (
    HTTPStatusError,
    ObjectPushError,
    TransportError,
    empty_run,
    is_simulated,
)
from fairbloom.logs import log
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.rounds.quorum import Quorum

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
    """The nodes that were offline while their replies were awaited, and since when.

    A node that is back may still have its reply, or may have lost it in a restart. Its reply is
    awaited for `patience` seconds, and without limit before any node has answered.
    """

    def __init__(self) -> None:
        self.patience = math.inf
        self._gone: dict[int, float] = {}
        self._back: dict[int, float] = {}

    def find_late(self, nodes: set[int], online: set[int], now: float) -> set[int]:
        """Return the nodes that are given up at second `now`."""
        for node in nodes & online & self._gone.keys():
            del self._gone[node]
            self._back[node] = now
        for node in nodes - online:
            self._gone.setdefault(node, now)
        gone = {node for node, since in self._gone.items() if now - since >= GRACE_SECONDS}
        return gone | {
            node
            for node in nodes & online & self._back.keys()
            if now - self._back[node] >= self.patience
        }


class Stopwatch:
    """Counts the seconds in which enough clients were online."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.paused = False
        self._measured = time.monotonic()

    def measure(self, *, counts: bool) -> float:
        """Return the seconds counted so far, with those since the last call if `counts`."""
        now = time.monotonic()
        if counts:
            self.seconds += now - self._measured
        else:
            self.paused = True
        self._measured = now
        return self.seconds


class OwnGrid(Grid):
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


class PollingGrid(Grid):
    """Wraps another grid and collects its replies through push and pull.

    `min_replies` replies, errors not counted, end a round's training; 0 waits for all. While fewer
    clients are online than `quorum` needs, deadlines are suspended. `enrolled` drops revoked
    clients from the names that it gets: those are not waited for.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        min_replies: int = 0,
        quorum: Quorum | None = None,
        enrolled: Callable[[Iterable[str]], Collection[str]] = tuple,
    ) -> None:
        self._grid = grid
        self._min_replies = min_replies
        self._quorum = quorum
        self._enrolled = enrolled
        self.simulated = is_simulated(grid)
        self.most_nodes = getattr(grid, "most_nodes", None)

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Run information."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes online."""
        return _retry(self._grid.get_node_ids)

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes online."""
        return _retry(self._grid.get_nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids.

        After a failure all are sent again: the SuperLink recognises duplicates by their content.
        """
        messages = list(messages)
        lifetimes = [message.metadata.ttl for message in messages]

        def push() -> Iterable[str]:
            for message, lifetime in zip(messages, lifetimes, strict=True):
                age = time.time() - message.metadata.created_at
                if age >= message.metadata.ttl:  # it expired while the SuperLink was away
                    message.metadata.ttl = age + lifetime
            return self._grid.push_messages(messages)

        return _retry(push)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have come."""
        return _retry(lambda: self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return enough replies, or those that came within `timeout` seconds.

        If the clients that answered would be too few for the quorum, one more minute shows whether
        the others are offline.
        """
        messages = list(messages)
        kinds = {message.metadata.message_type for message in messages}
        training = kinds == {MessageType.TRAIN}
        working = MessageType.QUERY not in kinds
        pending = self._send(messages)
        watch = Stopwatch()
        left = math.inf if timeout is None else timeout
        absences = Absences()
        extended = False
        replies: list[Message] = []
        while pending:
            online = set(self.get_node_ids())
            replies += self._strike_off(pending, online)
            enough = not working or self._quorum is None or self._quorum.is_met_by_nodes(online)
            elapsed = watch.measure(counts=enough)
            if enough and watch.paused:
                self._send_again(pending, left)
            came = self._collect(pending, online, absences, elapsed) if enough else []
            replies += came
            for reply in came:
                pending.pop(reply.metadata.reply_to_message_id, None)
            if (
                enough
                and training
                and 0 < self._min_replies <= sum(reply.has_content() for reply in replies)
            ):
                break
            elapsed = watch.measure(counts=enough)
            if any(reply.has_content() for reply in came):
                absences.patience = max(GRACE_SECONDS, elapsed)
            if timeout is not None and (left := timeout - elapsed) <= 0:
                silent = {message.metadata.dst_node_id for message in pending.values()}
                if (
                    extended
                    or not working
                    or self._quorum is None
                    or self._quorum.would_be_met(online - silent)
                ):
                    break
                extended = True
                timeout = timeout + GRACE_SECONDS
                left = GRACE_SECONDS
                watch.paused = True  # messages expire with the deadline, so they are sent again
            if pending:
                pause = min(left, LONGEST_SECONDS, max(SHORTEST_SECONDS, elapsed / 20))
                wanted = len(pending)
                if training and self._min_replies > 0:
                    wanted = self._min_replies - sum(reply.has_content() for reply in replies)
                self._wait(pending, wanted, pause)
        return replies

    def _wait(self, pending: Collection[str], number: int, seconds: float) -> None:
        """Pause before the next look; a grid that sees replies come ends the pause at `number`."""
        wait: Callable[[Collection[str], int, float], None] | None = getattr(
            self._grid, "wait_for_replies", None
        )
        if wait is None:
            time.sleep(seconds)
        else:
            _retry(
                lambda: wait(pending, min(number, len(pending)), min(LONGEST_SECONDS, 10 * seconds))
            )

    def _send(self, messages: Sequence[Message]) -> dict[str, Message]:
        return {
            sent: message
            for sent, message in zip(self.push_messages(messages), messages, strict=True)
            if sent
        }

    def _strike_off(self, pending: dict[str, Message], online: set[int]) -> list[Message]:
        """Stop waiting for revoked clients; return an error as the reply of each of them."""
        away = {message.metadata.dst_node_id for message in pending.values()} - online
        gone = set[int]()
        if self._quorum is not None and away:
            gone = self._quorum.forget(away, self._enrolled)
        struck = [sent for sent, message in pending.items() if message.metadata.dst_node_id in gone]
        error = Error(ErrorCode.NODE_UNAVAILABLE, "the operator has revoked this client")
        return [Message(error, reply_to=pending.pop(sent)) for sent in struck]

    def _send_again(self, pending: dict[str, Message], left: float) -> None:
        """Send again messages that expired, or nearly did, while the run waited for clients.

        Those are messages with less than 2 s to live; they now live for `left` seconds.
        """
        now = time.time()
        dying = {
            sent: message
            for sent, message in pending.items()
            if message.metadata.created_at + message.metadata.ttl - now < min(2.0, left)
        }
        for sent, message in dying.items():
            message.metadata.created_at = now
            if left < math.inf:
                message.metadata.ttl = left
            del pending[sent]
        if dying:
            pending.update(self._send([*dying.values()]))

    def _collect(
        self, pending: Mapping[str, Message], online: set[int], absences: Absences, now: float
    ) -> list[Message]:
        """Return the replies that have come, and errors for those given up.

        Offline nodes are not asked for: the SuperLink would give up the message and refuse its
        reply.
        """
        waiting = {sent: message.metadata.dst_node_id for sent, message in pending.items()}
        late = absences.find_late(set(waiting.values()), online, now)
        came = list(
            self.pull_messages([sent for sent, node in waiting.items() if node in online | late])
        )
        answered = {reply.metadata.reply_to_message_id for reply in came}
        given_up = [sent for sent, node in waiting.items() if node in late and sent not in answered]
        error = Error(
            ErrorCode.NODE_UNAVAILABLE,
            f"the node was offline for {GRACE_SECONDS:.0f} s, or is back without this reply",
        )
        return came + [Message(error, reply_to=pending[sent]) for sent in given_up]


def _retry(call: Callable[[], T]) -> T:
    """Retry a call until it succeeds, fails for good, or has failed for `PATIENCE_SECONDS`."""
    since = math.inf
    while True:
        try:
            result = call()
        except Exception as error:
            now = time.monotonic()
            if not is_temporary(error) or now - since >= PATIENCE_SECONDS:
                raise
            if since == math.inf:
                since = now
                log.warning(
                    "the SuperLink fails this run, which waits for it up to %.0f minutes: %s",
                    PATIENCE_SECONDS / 60.0,
                    error,
                )
        else:
            if since < math.inf:
                log.warning(
                    "the SuperLink works again after %.0f s, and the run continues",
                    time.monotonic() - since,
                )
            return result
        time.sleep(LONGEST_SECONDS)


def is_temporary(error: Exception) -> bool:
    """Return whether a call may succeed later, such as after a SuperLink's restart.

    Flower itself does not retry after a broken handshake, a busy database, expired messages, or a
    part that is sent twice. An answer that refuses the request (401, 403, 404) is final.
    """
    if isinstance(error, HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, (TransportError, ObjectPushError))

"""A grid that looks for replies often, in place of every three seconds."""

import math
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.run import Run

SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 1.0
"""Between two looks; in between, a twentieth of what the messages have taken so far."""

BACKOFF_SECONDS = 0.05
"""Until a part of a reply is asked for again that is announced and still on its way; Flower's is 1 s, and doubles."""


class PollingGrid(Grid):
    """Another grid, whose replies are collected through its public push and pull.

    Parameters
    ----------
    grid
        Carries the messages.
    min_replies
        How many replies, errors not counted, end a round's training; 0: one to every message.
    """

    def __init__(self, grid: Grid, *, min_replies: int = 0) -> None:
        self._grid, self._min_replies = grid, min_replies
        defaults: dict[str, Any] = getattr(pull_objects, "__kwdefaults__", None) or {}
        if "initial_backoff" in defaults:  # no argument of Flower's reaches it; where it is gone, its own wait stays
            defaults["initial_backoff"] = BACKOFF_SECONDS

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Run information."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a new message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes online."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes online."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have come."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages; return the replies once enough are here, or those that are here after `timeout` seconds."""
        messages, started = list(messages), time.monotonic()
        training = all(message.metadata.message_type == MessageType.TRAIN for message in messages)
        due = {message_id for message_id in self.push_messages(messages) if message_id}
        replies: list[Message] = []
        while due:
            came = list(self.pull_messages(due))
            replies += came
            due -= {reply.metadata.reply_to_message_id for reply in came}
            if training and 0 < self._min_replies <= sum(reply.has_content() for reply in replies):
                break
            elapsed = time.monotonic() - started
            left = math.inf if timeout is None else timeout - elapsed
            if left <= 0:
                break
            if due:
                time.sleep(min(left, LONGEST_SECONDS, max(SHORTEST_SECONDS, elapsed / 20)))
        return replies

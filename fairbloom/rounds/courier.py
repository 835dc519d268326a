"""What a grid can do for a run besides carrying messages."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from fairbloom.flower import is_simulation


class Courier(Grid):
    """A grid of Flower's, and what a run asks of it besides; one that cannot do it does nothing.

    Attributes
    ----------
    simulated
        Whether Flower simulates the nodes: no further ones come.
    keeps_replies
        Whether it keeps the replies of a round until that is saved. Then a run continues with the
        states that clients had, even if its process was lost.
    sees_replies
        Whether `wait_for_replies` returns as soon as they have come.
    contexts
        The contexts of clients in this process, by node id.
    """

    simulated = False
    keeps_replies = False
    sees_replies = False
    contexts: Mapping[int, Context] = MappingProxyType({})

    @property
    def most_nodes(self) -> int | None:
        """How many nodes there are at most, None if that is unknown."""
        return None

    def save(self, last: int) -> None:
        """Note that the rounds up to `last` are saved; 0: the run will save its rounds."""

    def note_wait(self, text: str) -> None:
        """Note for which clients the run waits; "": it no longer does."""

    def wait_for_replies(self, message_ids: Collection[str], number: int, seconds: float) -> None:
        """Return once `number` of these messages are answered, or after `seconds`."""

    def find_owed(self, message_ids: Iterable[str]) -> Iterable[str]:
        """Return the messages among these that clients owe a reply to.

        All of them, if the grid does not know what its clients work on.
        """
        return message_ids


class FlowerCourier(Courier):
    """Any other grid, which only carries messages."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.simulated = is_simulation(grid)

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
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes online."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have come."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; return the replies that came within `timeout` seconds."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def courier_of(grid: Grid) -> Courier:
    """Return a grid of ours as it is, and Flower's own or a user's as one that carries messages."""
    return grid if isinstance(grid, Courier) else FlowerCourier(grid)

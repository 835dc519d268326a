"""The states of clients' contexts in one process, next to the checkpoint of the same round."""

from pathlib import Path

from fairbloom.recorddict import deserialize, serialize
from fairbloom.rounds.courier import Courier
from fairbloom.system.versions import Point, VersionEntry, Versions

from ..checkpoint import list_checkpoints
from .errors import explain_write_errors
from .files import CHECKPOINTS, CONTEXTS


class KeptContexts:
    """Writes and restores `Context.state` of each client, by the rounds of checkpoints.

    Clients on other machines keep their own: then there are no contexts, and nothing is written.
    """

    def __init__(self, path: Path, courier: Courier) -> None:
        self._path = path
        self._contexts = courier.contexts

    def __bool__(self) -> bool:
        """Return whether clients are in this process."""
        return bool(self._contexts)

    def save(self, number: int) -> None:
        """Write the states after a round, before its checkpoint; remove those of no checkpoint."""
        needed = [
            Point(int(path.stem)) for path in list_checkpoints(CHECKPOINTS.path_in(self._path))
        ]
        states = [
            VersionEntry(str(node), Point(number), serialize(context.state))
            for node, context in self._contexts.items()
            if context.state
        ]
        with explain_write_errors(f"round {number}", self._path):
            versions = Versions(CONTEXTS.path_in(self._path))
            for node in self._contexts:
                versions.retain(str(node), needed)
            if states:
                versions.write(states)
            versions.tidy()

    def load(self, number: int) -> None:
        """Give the clients the states that they had after a round, empty ones where none is kept.

        A round that this process has interrupted may have changed them.
        """
        versions = Versions(CONTEXTS.path_in(self._path))
        for node, context in self._contexts.items():
            context.state = deserialize(versions.read(str(node), Point(number)) or b"")

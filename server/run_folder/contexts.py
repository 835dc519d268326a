"""The states of clients' contexts in one process, next to the checkpoint of the same round."""

import json
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from fairbloom.recorddict import deserialize, serialize
from fairbloom.system.versions import read_sealed, write_sealed

from ..checkpoint import list_checkpoints
from .errors import explain_write_errors
from .files import CHECKPOINTS

ENDING = ".contexts"


class KeptContexts:
    """Writes and restores `Context.state` of each client, by the rounds of checkpoints.

    Clients on other machines keep their own: then there are no contexts, and nothing is written.
    """

    def __init__(self, path: Path, grid: Grid) -> None:
        self._path = path
        self._folder = CHECKPOINTS.path_in(path)
        # A grid with its clients in this process has their contexts.
        self._contexts: Mapping[int, Context] = getattr(grid, "contexts", {})

    def __bool__(self) -> bool:
        """Return whether clients are in this process."""
        return bool(self._contexts)

    def save(self, number: int) -> None:
        """Write the states after a round, before its checkpoint; delete those of no checkpoint."""
        states = {
            node: serialize(context.state)
            for node, context in self._contexts.items()
            if context.state
        }
        file = self._folder / f"{number}{ENDING}"
        with explain_write_errors(f"round {number}", self._path):
            if states:
                sizes = {node: len(state) for node, state in states.items()}
                write_sealed(
                    file, b"\n".join([json.dumps(sizes).encode(), b"".join(states.values())])
                )
            else:
                file.unlink(missing_ok=True)
            needed = {int(path.stem) for path in list_checkpoints(self._folder)} | {number}
            for path in self._folder.glob(f"[0-9]*{ENDING}"):
                if int(path.stem) not in needed:
                    path.unlink()

    def load(self, number: int) -> None:
        """Give the clients the states that they had after a round, empty ones where none is kept.

        A round that this process has interrupted may have changed them.
        """
        content = read_sealed(
            self._folder / f"{number}{ENDING}", "the clients begin without the states in it"
        )
        head, _, states = (content or b"{}").partition(b"\n")
        for context in self._contexts.values():
            context.state = RecordDict()
        place = 0
        for node, size in json.loads(head).items():
            if int(node) in self._contexts:
                self._contexts[int(node)].state = deserialize(states[place : place + size])
            place += size

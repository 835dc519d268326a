"""What apps keep in Flower's `Context.state` from message to message of a run."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from fairbloom.system.files import make_folder, write_private

MOST_RUNS = 5
"""How many runs have their state kept: the last ones."""

log = logging.getLogger("flwr")


class Contexts:
    """The states of runs, in files that outlive a restart."""

    def __init__(self, state_dir: str) -> None:
        self._folder = Path(state_dir, "contexts")

    def load(self, run: int) -> bytes:
        """Return the state of a run, b"" where there is none."""
        file = self._folder / str(run)
        content = file.read_bytes() if file.exists() else b""
        digest, state = content[:32], content[32:]
        if content and hashlib.sha256(state).digest() != digest:
            log.error("%s is damaged: the app begins without what it kept there", file)
            return b""
        return state

    def save(self, run: int, state: bytes) -> None:
        """Keep the state of a run, and forget that of the oldest."""
        make_folder(self._folder)
        write_private(self._folder / str(run), hashlib.sha256(state).digest() + state)
        files = sorted(self._folder.glob("[0-9]*"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MOST_RUNS]:
            file.unlink()

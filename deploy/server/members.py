"""Who is enrolled, as the operator's files say now, by the number of a node at the SuperLink."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log

from ..operator.federation import Federation

READ_SECONDS = 1.0
"""Seconds after which the operator's files are read again."""


class Members:
    """Who is enrolled, by the files of a federation's folder, which are read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._federation = Federation(folder)
        self._lock = threading.Lock()
        self._looked = -READ_SECONDS
        self._names: dict[int, str] = {}
        self._trouble = ""

    def name_of(self, node_id: int) -> str:
        """Return the client's name, or words for a node that is nobody's."""
        return self._known().get(node_id, f"node {node_id}")

    def _known(self) -> dict[int, str]:
        """Return the clients' names by node, as the files said a second ago at the most."""
        with self._lock:
            if time.monotonic() - self._looked >= READ_SECONDS:
                self._looked = time.monotonic()
                self._read()
            return self._names

    def _read(self) -> None:
        trouble = ""
        try:
            self._names = {int(client.node_id): client.name for client in self._federation.enrolled}
        except FairbloomError as error:  # what was known before goes on to hold
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log.warning("who is enrolled cannot be read: %s", trouble)
        self._trouble = trouble

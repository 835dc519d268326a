"""Who is enrolled, as the operator's files say now, by the number of a node at the SuperLink."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.logs import log

from ..operator.federation import Federation
from ..operator.registry import ClientKey

READ_SECONDS = 1.0
"""Seconds after which the operator's files are read again."""


class Members:
    """Who is enrolled, by the files of a federation's folder, which are read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._federation = Federation(folder)
        self._lock = threading.Lock()
        self._looked = -READ_SECONDS
        self._keys: dict[int, ClientKey] = {}
        self._trouble = ""

    def name_of(self, node_id: int) -> str:
        """Return the client's name, or words for a node that is nobody's."""
        key = self._known().get(node_id)
        return key.client if key else f"node {node_id}"

    def expired(self, node_id: int) -> str:
        """Return since when the node's key is no longer good, "" where it is."""
        key = self._known().get(node_id)
        return key.expires if key and key.expired(datetime.now(UTC)) else ""

    def is_due(self, node_id: int) -> bool:
        """Return whether it is time for the node's next key."""
        key = self._known().get(node_id)
        return key is not None and key.is_due(datetime.now(UTC))

    def _known(self) -> dict[int, ClientKey]:
        """Return the keys by node, as the files said a second ago at the most."""
        with self._lock:
            if time.monotonic() - self._looked >= READ_SECONDS:
                self._looked = time.monotonic()
                self._read()
            return self._keys

    def _read(self) -> None:
        trouble = ""
        try:
            registered = self._federation.keys()
            self._keys = {int(key.node_id): key for key in registered}
        except FairbloomError as error:  # what was known before goes on to hold
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log.warning("who is enrolled cannot be read: %s", trouble)
        self._trouble = trouble

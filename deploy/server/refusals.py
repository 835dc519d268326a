"""Refused attempts, noted in the audit log within bounds, so that they cannot fill the disk."""

import threading
import time
from pathlib import Path

from fairbloom.logs import log

from ..operator import audit

SECONDS = 60.0
"""Seconds between two notes of the same attempt; each note says how often it was made since the one before."""

DIFFERENT = 1000
"""How many different attempts are distinguished; further ones are noted as one."""

LONGEST = 200
"""How many characters of a value a note keeps."""


class RefusalLog:
    """Notes refused attempts in the audit log of the federation's state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self.attempts = 0  # refused since the start, noted or not
        self._noted: dict[tuple[str, ...], float] = {}
        self._since: dict[tuple[str, ...], int] = {}

    def note(self, what: str, **about: str) -> bool:
        """Note one attempt: what was tried, and by whom as far as that is known; return whether a line was written."""
        with self._lock:
            self.attempts += 1
        return self.note_event(f"refused: {what}", **about)

    def note_event(self, what: str, **about: str) -> bool:
        """Note what was not refused, in the same way."""
        about = {key: (_without_port(value) if key == "peer" else value)[:LONGEST] for key, value in about.items()}
        attempt = (what, *about.values())
        with self._lock:
            if attempt not in self._noted and len(self._noted) >= DIFFERENT:
                attempt, about = (what,), {}
            self._since[attempt] = self._since.get(attempt, 0) + 1
            if time.monotonic() - self._noted.get(attempt, -SECONDS) < SECONDS:
                return False
            self._noted[attempt] = time.monotonic()
            times = self._since.pop(attempt)
        try:
            audit.note(self._folder, what, times=times, **about)
        except OSError as error:  # what is refused stays refused while the disk is full
            log.warning("the audit log in %s cannot be written: %s", self._folder, error)
        return True


def _without_port(peer: str) -> str:
    """Return an address as gRPC or HTTP name it, without the port, which is another each time."""
    kind, colon, address = peer.partition(":")
    return address.rpartition(":")[0] if colon and kind in ("ipv4", "ipv6") else peer

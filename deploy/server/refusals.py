"""Lines of the server's log on what was done and what was refused, so bounded that strangers cannot fill the disk."""

import threading
import time

from fairbloom.logs import escape_unprintable, log

SECONDS = 60.0
"""Seconds between two lines on the same attempt; each says how often it was made since the one before."""

DIFFERENT = 1000
"""How many different attempts are distinguished; further ones are logged as one."""

LONGEST = 200
"""How many characters of a value a line has."""


def log_event(what: str, **about: str) -> None:
    """Log one line on what was done, and of whom."""
    words = ", ".join(f"{key} {escape_unprintable(value[:LONGEST])}" for key, value in about.items())
    log.warning("%s", f"{what} ({words})" if words else what)  # Flower's INFO is not shown


class RefusalLog:
    """Logs refused attempts of strangers and clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.attempts = 0  # refused since the start, logged or not
        self._noted: dict[tuple[str, ...], float] = {}
        self._since: dict[tuple[str, ...], int] = {}

    def note(self, what: str, **about: str) -> None:
        """Log one attempt, at most once a minute: what was tried, and by whom as far as that is known."""
        with self._lock:
            self.attempts += 1
        self.note_event(f"refused: {what}", **about)

    def note_event(self, what: str, **about: str) -> None:
        """Log what was not refused, in the same way."""
        about = {key: (_without_port(value) if key == "peer" else value)[:LONGEST] for key, value in about.items()}
        attempt = (what, *about.values())
        with self._lock:
            if attempt not in self._noted and len(self._noted) >= DIFFERENT:
                attempt, about = (what,), {}
            self._since[attempt] = self._since.get(attempt, 0) + 1
            if time.monotonic() - self._noted.get(attempt, -SECONDS) < SECONDS:
                return
            self._noted[attempt] = time.monotonic()
            times = self._since.pop(attempt)
        log_event(what, **about, **({"times": str(times)} if times > 1 else {}))


def _without_port(peer: str) -> str:
    """Return an address as gRPC or HTTP name it, without the port, which is another each time."""
    kind, colon, address = peer.partition(":")
    return address.rpartition(":")[0] if colon and kind in ("ipv4", "ipv6") else peer

"""What a client says while it is cut off from its SuperLink."""

import sys
import threading
import time

from ..processes import duration

CONNECTED = "SuperNode ID:"
"""What a client logs once it is connected."""


class Outage:
    """Says each fault once while the client is cut off, and then that it is connected again."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def fault(self, words: str) -> None:
        """Say what is wrong, where that is new."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
            if words not in self._said:
                self._said.add(words)
                say(f"{words}; retrying until it works")

    def end(self) -> None:
        """Say that the client is connected again, where a fault was said before."""
        with self._lock:
            if self._since is not None:
                say(f"back: connected again after {duration(time.monotonic() - self._since)}")
            self._since = None
            self._said.clear()


def say(words: str) -> None:
    """Print a line about this client on stderr."""
    print(f"fairbloom client: {words}", file=sys.stderr, flush=True)

"""What a client says while it is cut off from its server."""

import sys
import threading
import time
from collections.abc import Callable

from ..processes import duration


def say(words: str) -> None:
    """Print a line about this client on stderr."""
    sys.stderr.write(f"fairbloom client: {words}\n")  # in one piece: other processes write there, too
    sys.stderr.flush()


class Outage:
    """Says each fault once while there is no connection, and then that there is one again."""

    def __init__(self, say: Callable[[str], None] = say) -> None:
        self._say = say
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
                self._say(f"{words}; retrying until it works")

    def end(self) -> None:
        """Say that the client is connected again, where a fault was said before."""
        with self._lock:
            if self._since is not None:
                self._say(f"back: connected again after {duration(time.monotonic() - self._since)}")
            self._since = None
            self._said.clear()

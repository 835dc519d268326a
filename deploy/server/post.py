"""Calls of nodes that ask for work while there is none: they are held until there is, so that nobody need ask often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from grpc import ServicerContext

HELD_SECONDS = 10.0
"""Longest time that a call is held. It ends well before a router or a firewall forgets a silent connection."""

MOST_HELD = 500
"""How many calls are held at a time, of the 1000 that Flower's server works on; others are answered at once."""


class Post:
    """Holds calls for messages, at most one of each node, until a message has come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[int, threading.Event] = {}

    def ring(self) -> None:
        """Let all calls that are held look again: messages have come."""
        with self._lock:
            bells = list(self._bells.values())
        for bell in bells:
            bell.set()

    def wait(self, node_id: int, arrived: Callable[[], bool], call: ServicerContext) -> bool:
        """Hold a call until something has arrived for its node, the node has hung up, or the time is over.

        Returns
        -------
        bool
            Whether something has arrived. Where too many calls are held, or one of the same node, this one is not.
        """
        bell = self._bell_of(node_id)
        if bell is None:
            return False
        try:
            call.add_callback(bell.set)  # at the end of the call, as when the connection breaks
            until = time.monotonic() + HELD_SECONDS
            while True:
                bell.clear()  # before the look: what arrives after it rings again
                if not call.is_active():
                    return False
                if arrived():
                    return True
                if not bell.wait(until - time.monotonic()):
                    return False
        finally:
            with self._lock:
                del self._bells[node_id]

    def _bell_of(self, node_id: int) -> threading.Event | None:
        """Return a new bell for a node's call, None where it cannot be held."""
        with self._lock:
            if node_id in self._bells or len(self._bells) >= MOST_HELD:
                return None
            self._bells[node_id] = bell = threading.Event()
            return bell

"""Long polling: a node's call for work is held while there is none, so that nodes need not ask often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from grpc import ServicerContext

HELD_SECONDS = 50.0
"""Longest time that a call is held: less than a minute, after which some routers forget a silent connection."""

MOST_HELD = 1500
"""How many calls are held at a time, as many as there are connections; others are answered at once."""


class LongPoll:
    """Holds calls for messages, at most one of each node, until a message has come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, threading.Event] = {}

    def wake(self, nodes: Iterable[int]) -> None:
        """Let the calls of these nodes that are held look again: messages have come."""
        with self._lock:
            events = [self._waiting[node] for node in nodes if node in self._waiting]
        for event in events:
            event.set()

    def wait(self, node_id: int, arrived: Callable[[], bool], call: ServicerContext) -> bool:
        """Hold a call until something arrives for its node, it hangs up, or time is over; return whether it arrived.

        A call is not held if too many are, or another of the same node.
        """
        event = self._register(node_id)
        if event is None:
            return False
        try:
            call.add_callback(event.set)  # at the end of the call, as when the connection breaks
            until = time.monotonic() + HELD_SECONDS
            while True:
                event.clear()  # before the look: what arrives after it sets the event again
                if not call.is_active():
                    return False
                if arrived():
                    return True
                if not event.wait(until - time.monotonic()):
                    return False
        finally:
            with self._lock:
                del self._waiting[node_id]

    def _register(self, node_id: int) -> threading.Event | None:
        """Return a new event for a node's call, None where the call cannot be held."""
        with self._lock:
            if node_id in self._waiting or len(self._waiting) >= MOST_HELD:
                return None
            self._waiting[node_id] = event = threading.Event()
            return event

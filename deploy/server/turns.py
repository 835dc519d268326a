"""How many calls of one node a server works on at once: a node that floods delays itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

CALLS_AT_ONCE = 2
"""Calls of one node that are worked on at the same time; more of them wait."""

UNDER_WAY_AT_ONCE = 32
"""Calls of one node that are worked on or wait; further ones are turned away, to be tried again. Flower's clients make
fewer than 20. Without an end, one node's calls would take all threads and much memory."""


class TooManyCallsError(Exception):
    """A node has too many calls under way."""


class Turns:
    """Lets at most a few calls of one node be worked on at once, and some more wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[int] = Counter()
        self._semaphores: dict[int, threading.Semaphore] = {}

    @contextmanager
    def of(self, node_id: int) -> Iterator[None]:
        """Wait for this node's turn, and hold it; raise TooManyCallsError where too many wait already."""
        with self._lock:
            if self._under_way[node_id] >= UNDER_WAY_AT_ONCE:
                raise TooManyCallsError
            self._under_way[node_id] += 1
            semaphore = self._semaphores.setdefault(node_id, threading.Semaphore(CALLS_AT_ONCE))
        try:
            with semaphore:
                yield
        finally:
            with self._lock:
                self._under_way[node_id] -= 1

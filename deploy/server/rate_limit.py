"""Limits on the calls of one node, or connection, that a server works on at once: a node that floods delays itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

CALLS_AT_ONCE = 2
"""How many calls of one node are worked on at the same time; further calls wait."""

UNDER_WAY_AT_ONCE = 32
"""How many calls of one node may be worked on or wait; further calls are turned away, and the client tries them again.
Flower's clients make fewer than 20 at once. Without a limit, one node could take all threads and much memory."""


class TooManyCallsError(Exception):
    """A caller has too many calls under way."""


class CallLimit:
    """Lets at most a few calls of one caller be worked on at once, and some more wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[Hashable] = Counter()
        self._semaphores: dict[Hashable, threading.Semaphore] = {}

    @property
    def under_way(self) -> int:
        """How many calls of all callers are worked on or wait."""
        with self._lock:
            return self._under_way.total()

    @contextmanager
    def slot(self, caller: Hashable) -> Iterator[None]:
        """Wait until this caller's next call may be worked on; raise TooManyCallsError where too many wait already."""
        with self._lock:
            if self._under_way[caller] >= UNDER_WAY_AT_ONCE:
                raise TooManyCallsError
            self._under_way[caller] += 1
            semaphore = self._semaphores.setdefault(caller, threading.Semaphore(CALLS_AT_ONCE))
        try:
            with semaphore:
                yield
        finally:
            with self._lock:
                self._under_way[caller] -= 1
                if not self._under_way[caller]:
                    del self._under_way[caller], self._semaphores[caller]

"""What a client works on, and its end before it is finished: nobody wants it any longer, or it takes too long."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..processes import leave
from .supervisor import say

GRACE_SECONDS = 30.0
"""Work that is told to end has so long; then the client's process ends, and is started again."""


class DroppedError(BaseException):
    """Raised in the midst of work, in the main thread; the message says why. No app catches it with its own errors."""


class Work:
    """What this process's main thread works on, one thing at a time, each for at most `seconds` (0: no limit).

    `end` ends the process if the work does not end when it is told to.
    """

    def __init__(self, seconds: float = 0.0, end: Callable[[int], Any] = leave) -> None:
        self.name = ""
        """What is worked on, "" for nothing."""
        self._seconds, self._end = seconds, end
        self._reason = ""
        self._timers: list[threading.Timer] = []
        signal.signal(signal.SIGUSR1, self._interrupt)

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Work on something in this block; raise DroppedError in its midst where it is dropped."""
        self.name, self._reason = name, ""
        if self._seconds:
            words = f"it took longer than the owner of this device allows ({self._seconds:g} s, limits.round-seconds)"
            self._after(self._seconds, self.drop, name, words)
        try:
            yield
        finally:
            self.name = ""
            for timer in self._timers:
                timer.cancel()
            self._timers = []

    def drop(self, name: str, reason: str) -> None:
        """Let work by this name end, where it is still going on; to be called by another thread, once or often."""
        if name != self.name or self._reason:
            return
        self._reason = reason
        self._after(GRACE_SECONDS, self._give_up, name)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _after(self, seconds: float, call: Callable[..., None], *given: str) -> None:
        timer = threading.Timer(seconds, call, given)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _interrupt(self, number: int, frame: object) -> None:
        if self.name and self._reason:
            raise DroppedError(self._reason)

    def _give_up(self, name: str) -> None:
        if name == self.name:
            say(f"the work does not end, and is dropped with its process: {self._reason}")
            self._end(1)

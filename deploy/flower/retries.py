"""How often Flower looks for a SuperLink that is away, and what is said meanwhile."""

import logging
import time
from collections.abc import Callable

from ..processes import duration
from .relied_on import HTTP_RETRY, replace

LONGEST_RETRY_SECONDS = 5.0
"""Longest pause, in place of Flower's 20 s, between attempts to reach a SuperLink that is away."""


class Retries(logging.Filter):
    """Reports once that the SuperLink is away, and once that it is back, where Flower logs every attempt."""

    ATTEMPTS = ("Connection attempt failed", "Giving up reconnection", "SSL/TLS handshake error detected")
    SUCCESS = "Connection successful"

    def __init__(self, say: Callable[[str], None], away: str) -> None:
        super().__init__()
        self._say, self._away = say, away
        self._away_since: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether Flower's own words are logged."""
        words = str(record.msg)
        if words.startswith(self.ATTEMPTS):
            if self._away_since is None:
                self._away_since = time.monotonic()
                self._say(self._away)
        elif words.startswith(self.SUCCESS):
            if self._away_since is not None:
                self._say(f"back: connected again after {duration(time.monotonic() - self._away_since)}")
            self._away_since = None
        else:
            return True
        return False


def retry_soon() -> None:
    """Let Flower look for a SuperLink that is away at least every few seconds."""
    replace(HTTP_RETRY, "MAX_RETRY_DELAY", LONGEST_RETRY_SECONDS)

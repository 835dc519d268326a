"""How often Flower looks for a SuperLink that is away, and what is said meanwhile."""

import logging

from ..device.outage import Outage
from .relied_on import HTTP_RETRY, replace

LONGEST_RETRY_SECONDS = 5.0
"""Longest pause, in place of Flower's 20 s, between attempts to reach a SuperLink that is away."""


class Retries(logging.Filter):
    """Reports once that the SuperLink is away, and once that it is back, where Flower logs every attempt."""

    ATTEMPTS = ("Connection attempt failed", "Giving up reconnection", "SSL/TLS handshake error detected")
    SUCCESS = "Connection successful"

    def __init__(self, outage: Outage, away: str) -> None:
        super().__init__()
        self._outage, self._away = outage, away

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether Flower's own words are logged."""
        words = str(record.msg)
        if words.startswith(self.ATTEMPTS):
            self._outage.fault(self._away)
        elif words.startswith(self.SUCCESS):
            self._outage.end()
        else:
            return True
        return False


def retry_soon() -> None:
    """Let Flower look for a SuperLink that is away at least every few seconds."""
    replace(HTTP_RETRY, "MAX_RETRY_DELAY", LONGEST_RETRY_SECONDS)

"""Faults in the log: each is said once, although what failed is tried again every second."""

import math
from collections.abc import Callable
from time import monotonic

from fairbloom.logs import log

# Seconds after which the log says again that clients meet a limit of the port.
SAY_SECONDS = 60.0


class Faults:
    """The faults that were logged, by their subject."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._said: dict[str, tuple[str, float]] = {}

    def say(
        self,
        subject: str,
        words: str,
        every: float = math.inf,
        error: BaseException | None = None,
    ) -> None:
        """Log a fault, unless the subject has had the same one for less than `every` seconds.

        The log has the traceback of `error`, if one is given.
        """
        now = self._clock()
        before, at = self._said.get(subject, ("", now))
        if words != before or now - at >= every:
            log.error("%s", words, exc_info=error)
            self._said[subject] = words, now

    def clear(self, subject: str) -> None:
        """Note that the subject works: its next fault is logged again."""
        self._said.pop(subject, None)

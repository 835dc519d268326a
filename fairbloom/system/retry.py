"""Writes that are tried again while there is time."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from fairbloom.logs import log

# Seconds until a write that the disk has refused is tried again.
RETRY_SECONDS = 1.0

# Until when the writes of this thread are tried again; by default, not at all.
UNTIL: ContextVar[float] = ContextVar("until", default=-math.inf)


def deadline(seconds: float) -> float:
    """Return the moment after these seconds, by a clock that no one sets."""
    return time.monotonic() + seconds


@contextmanager
def retrying_writes(until: float) -> Iterator[None]:
    """Try writes of files again in this block, up to the moment `until`; see `retry_write`.

    It is ambient so that no write below a device's state folder can be without it.
    """
    token = UNTIL.set(until)
    try:
        yield
    finally:
        UNTIL.reset(token)


def retry_write(write: Callable[[], object], folder: Path) -> None:
    """Call `write`, and again while it raises OSError: a disk may be full for a while only.

    Raise the last OSError when the moment of `retrying_writes` comes, at once outside of it. The
    first one is logged.
    """
    until = UNTIL.get()
    is_first = True
    while True:
        try:
            write()
            return
        except OSError as error:
            if time.monotonic() + RETRY_SECONDS > until:
                raise
            if is_first:
                log.warning("%s cannot be written, trying again: %s", folder, error.strerror)
            is_first = False
            time.sleep(RETRY_SECONDS)

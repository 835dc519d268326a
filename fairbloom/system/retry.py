"""Writes that are tried again while there is time."""

import time
from collections.abc import Callable
from pathlib import Path

from fairbloom.logs import log

# Seconds until a write that the disk has refused is tried again.
RETRY_SECONDS = 1.0


def deadline(seconds: float) -> float:
    """Return the moment after these seconds, by a clock that no one sets."""
    return time.monotonic() + seconds


def write_until(write: Callable[[], object], until: float, folder: Path) -> None:
    """Call `write`, and again while it raises OSError: a disk may be full for a while only.

    Raise the last OSError when the moment `until` comes; see `deadline`. The first one is logged.
    """
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

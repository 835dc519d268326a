"""Signals that wait while a process begins."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def hold_signals(*numbers: int) -> Iterator[Collection[int]]:
    """Hold signals back during the block, also in processes it starts; yield those held before.

    Not on Windows.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield ()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals(*numbers: int) -> None:
    """Receive signals that the parent process has held back; those that wait come now."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

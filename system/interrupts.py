"""Hold signals back while a process starts."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def hold_signals(*numbers: int) -> Iterator[Collection[int]]:
    """Block signals in this process and its new children; yield the signals blocked before.

    Windows cannot block signals: nothing happens there.
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
    """Unblock signals that the parent process has blocked; pending ones are delivered now."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

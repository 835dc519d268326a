"""Ctrl-C as the way to end what would run forever, and signals that wait while a process begins."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class _Ended(BaseException):
    """Ctrl-C was pressed; no `except Exception` on the way catches it."""


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Let Ctrl-C end the block, as the way that is meant and not as an error."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once more, it would end what is on its way to the end
        raise _Ended

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, end)
        yield
    except _Ended:
        pass
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def hold_signals(*numbers: int) -> Iterator[Collection[int]]:
    """Hold signals back during the block, also in processes it starts; yield those held before. Not on Windows."""
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

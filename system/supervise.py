"""Hold signals back while a process starts or becomes another, and describe how one ended."""

import os
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def hold_signals(*numbers: int) -> Iterator[Collection[int]]:
    """Block signals in this process and its new children; yield the signals blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals(*numbers: int) -> None:
    """Unblock signals that the parent process has blocked; pending ones are delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def exit_reason(code: int) -> str:
    """Describe how a process ended from its exit code: "exit code 3", or "killed by SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"killed by signal {-code}"


def become(module: str, *arguments: str) -> None:
    """Replace this process by a module of ours, without the libraries that are loaded here.

    Signals stay blocked until the module releases them.
    """
    with hold_signals(*STOPPING):
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 (this Python)

"""Signals while a process starts or becomes another, how one ended, and what systemd is told."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def hold_signals(*numbers: int) -> Iterator[None]:
    """Block signals in this process and its new children."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def finish_first() -> Iterator[None]:
    """Obey a signal to end only after the block; in another thread than the main one, at once.

    Not by blocking signals, which the threads of libraries would still receive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = list[int]()
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in STOPPING
    }
    try:
        yield
    finally:
        for stopping, handler in before.items():
            signal.signal(stopping, handler)
        for late in received:
            signal.raise_signal(late)


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


def notify_systemd(state: str) -> None:
    """Send a state, such as READY=1, to systemd, if it has started this process as Type=notify."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        # if it does not arrive, systemd ends this process, and its log says so
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
            # a name that begins with @ is in the abstract namespace
            opened.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)

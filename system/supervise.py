"""Processes that go on as another one, and how a process ended, in words."""

import os
import signal
import sys

from .interrupts import hold_signals

STOPPING = (signal.SIGTERM, signal.SIGINT)


def exit_reason(code: int) -> str:
    """Return how a process ended, by its exit code: "exit code 3", or "killed by SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"killed by signal {-code}"


def become(module: str, *arguments: str) -> None:
    """Go on as a module of ours in a small process, without the libraries that are loaded here.

    Signals wait until the module releases them.
    """
    with hold_signals(*STOPPING):
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 (this Python)

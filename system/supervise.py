"""Replace this process by another program, and describe how a process ended."""

import os
import signal
import sys

from .interrupts import hold_signals

STOPPING = (signal.SIGTERM, signal.SIGINT)


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

"""What our processes around Flower's share: names that they rely on, an end together, words for what happened."""

import importlib
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

LOOK_SECONDS = 0.5

LONGEST_RETRY_SECONDS = 5.0
"""Longest pause, in place of Flower's 20 s, between attempts to reach a SuperLink that is away."""


def missing_names(names: Mapping[str, Iterable[str]]) -> list[str]:
    """Return which of Flower's names (module:attribute, with parameters) are not as they are relied on."""
    return [f"{name}({', '.join(parameters)})" for name, parameters in names.items() if not _is_there(name, parameters)]


def _is_there(name: str, parameters: Iterable[str]) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
        return set(parameters) <= set(inspect.signature(found).parameters) if parameters else callable(found)
    except (ImportError, AttributeError, ValueError):
        return False


def end_with(parent: int) -> None:
    """End this process when its parent, which tells its id, has ended, killed or not: nobody would stop it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


class Retries(logging.Filter):
    """Says once that the SuperLink is away, and once that it is back, where Flower logs every attempt.

    Parameters
    ----------
    say
        Says a line.
    away
        What is said when a connection is lost.
    """

    ATTEMPTS = ("Connection attempt failed", "Giving up reconnection", "SSL/TLS handshake error detected")
    SUCCESS = "Connection successful"

    def __init__(self, say: Callable[[str], None], away: str) -> None:
        super().__init__()
        self._say, self._away = say, away
        self._away_since: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether Flower's own words are logged."""
        words = str(record.msg)
        if words.startswith(self.ATTEMPTS):
            if self._away_since is None:
                self._away_since = time.monotonic()
                self._say(self._away)
        elif words.startswith(self.SUCCESS):
            if self._away_since is not None:
                self._say(f"back: connected again after {duration(time.monotonic() - self._away_since)}")
            self._away_since = None
        else:
            return True
        return False


def retry_soon(kind: str) -> None:
    """Let Flower look for a SuperLink that is away at least every few seconds, by `kind`, grpc or http."""
    retry: Any = importlib.import_module(f"flwr.supercore.retry.{kind}_retry")
    retry.MAX_RETRY_DELAY = LONGEST_RETRY_SECONDS


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ending(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"killed by signal {-code}"


def duration(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def leave(code: int) -> NoReturn:
    """End this process at once, whatever threads are left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

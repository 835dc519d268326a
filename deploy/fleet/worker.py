"""The process in which a client's app answers messages, seen from its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from fairbloom.system.supervise import exit_reason

from ..device.client import ClientSettings

# How long the worker may take to end in order before it is killed.
END_SECONDS = 5.0

# How often a message is given to the worker, where the worker ends before it has answered.
MOST_TIMES = 3


class DroppedError(Exception):
    """The work on a message was ended before it was finished; the message says why."""


class CrashedError(Exception):
    """The worker ended again and again without an answer."""


class Worker:
    """A process that loads the client's app for the first message and keeps it loaded.

    One thread asks for answers; others may drop the work.
    """

    def __init__(self, client: ClientSettings) -> None:
        self._client = client
        self._limit = float(client.limits.get("round-seconds", 0.0))
        self.working = ""
        """The name of the current task, or ""."""
        self._reason = ""
        self._ready = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        process = self._process
        return process is not None and process.poll() is None

    def answer(self, task: object, name: str) -> Any:
        """Return what the worker makes of a task.

        Raises DroppedError when the work is dropped, and CrashedError when the process ends three
        times without an answer.
        """
        with self._lock:
            self.working = name
            self._reason = ""
        reason = ""
        try:
            for _ in range(MOST_TIMES):
                try:
                    return self._answer(task)
                except (EOFError, ConnectionError):
                    process = self._process
                    self.end()
                    with self._lock:
                        if self._reason:
                            raise DroppedError(self._reason) from None
                    reason = exit_reason(process.returncode if process is not None else 0)
        finally:
            with self._lock:
                self.working = ""
        raise CrashedError(
            f"the client app's process ended {MOST_TIMES} times without a reply: {reason}"
        )

    def drop(self, name: str, reason: str) -> None:
        """End the work on this, and the process with it; for other threads, once or often.

        A process that still loads its libraries stays: where that takes longer than a message may
        wait, the client would never have one.
        """
        with self._lock:
            if name != self.working or self._reason:
                return
            self._reason = reason
            if self._ready:
                self._kill()

    def end(self) -> None:
        """End the process, where there is one; the next task starts another."""
        self._kill()
        if self._pipe is not None:
            self._pipe.close()
        self._process = None
        self._pipe = None
        self._ready = False

    def _answer(self, task: object) -> Any:
        if self._pipe is None or not self.runs:
            self.end()
            self._pipe, theirs = Pipe()
            # A new session: Ctrl-C reaches the client alone, and what the app starts can be ended
            # with it.
            self._process = subprocess.Popen(  # noqa: S603 (this Python)
                self._client.worker(theirs.fileno()),
                env=self._client.environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdout=sys.stderr.fileno(),
                stderr=sys.stderr.fileno(),
            )
            theirs.close()
        while not self._ready:
            came = self._wait(self._pipe)
            with self._lock:
                self._ready = came and self._pipe.recv()
                if self._reason:
                    raise DroppedError(self._reason)
        self._pipe.send(task)
        over = time.monotonic() + self._limit
        while not self._wait(self._pipe):
            if self._limit and time.monotonic() > over:
                seconds = f"{self._limit:g} s, limits.round-seconds"
                self.drop(
                    self.working, f"it took longer than the owner of this device allows ({seconds})"
                )
        return self._pipe.recv()

    def _wait(self, pipe: Connection) -> bool:
        """Wait a little; return whether the process has said something.

        Raise EOFError once it has ended.
        """
        if pipe.poll(0.2):
            return True
        # processes that the app has started may hold the pipe open
        if not self.runs and not pipe.poll():
            raise EOFError
        return False

    def _kill(self) -> None:
        if (process := self._process) is None:
            return
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        _signal(process, signal.SIGKILL)  # what the app has started, too
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)

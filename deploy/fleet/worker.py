"""Start, use and end the process in which a client's app answers messages."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from fairbloom.system.supervise import exit_reason

from ..device.client import ClientSettings
from .content import Content
from .passing import Answer, PassedTask, receive, send

# Seconds that the worker may take to end before it is killed.
END_SECONDS = 5.0

# Attempts at one message, if the worker ends without an answer.
MAX_ATTEMPTS = 3


class DroppedError(Exception):
    """The work on a message was stopped since the server no longer wants it; it has the reason."""


class OwnersLimitError(DroppedError):
    """The work on a message took longer than the device's owner allows."""


class CrashedError(Exception):
    """The worker ended MAX_ATTEMPTS times without an answer."""


class Worker:
    """A process that loads the client's app for the first message and keeps it loaded.

    One thread asks for answers; other threads may drop the work.
    """

    def __init__(self, client: ClientSettings) -> None:
        self._client = client
        # Work that a privacy account was charged for is finished, however long it takes.
        self._end_seconds = None if client.has_account else END_SECONDS
        self._limit = float(client.limits.get("round-seconds", 0.0))
        # The id of the current message, or "".
        self.working = ""
        self._dropped: DroppedError | None = None
        self._ready = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    @property
    def runs(self) -> bool:
        """Whether the process is running."""
        process = self._process
        return process is not None and process.poll() is None

    def answer(self, task: PassedTask, id: str) -> Answer:
        """Return the worker's answer to a task, the message with this id.

        Raise DroppedError if the work is dropped, and CrashedError if the process ends MAX_ATTEMPTS
        times without an answer.
        """
        with self._lock:
            self.working = id
            self._dropped = None
        reason = ""
        try:
            for _ in range(MAX_ATTEMPTS):
                try:
                    return self._answer(task)
                except (EOFError, ConnectionError):
                    process = self._process
                    self.end()
                    with self._lock:
                        if self._dropped is not None:
                            raise self._dropped from None
                    reason = exit_reason(process.returncode if process is not None else 0)
        finally:
            with self._lock:
                self.working = ""
        raise CrashedError(
            f"the client app's process ended {MAX_ATTEMPTS} times without a reply: {reason}"
        )

    def drop(self, id: str, error: DroppedError) -> None:
        """Stop the work on a message by ending the process; any thread may call this repeatedly.

        The first error is raised by `answer`.

        A process that still loads its libraries is left to finish loading. Otherwise, a device that
        loads them for longer than a message may take would never answer one.
        """
        with self._lock:
            if id != self.working or self._dropped is not None:
                return
            self._dropped = error
            if self._ready:
                self._kill()

    def end(self) -> None:
        """End the process if there is one; the next task starts another."""
        self._kill()
        if self._pipe is not None:
            self._pipe.close()
        self._process = None
        self._pipe = None
        self._ready = False

    def _answer(self, task: PassedTask) -> Answer:
        if self._pipe is None or not self.runs:
            self.end()
            self._pipe, theirs = Pipe()
            # In a new session, Ctrl-C reaches only the client, and one signal to the group ends the
            # processes that the app has started.
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
            loaded = self._wait(self._pipe)
            with self._lock:
                self._ready = loaded and self._pipe.recv()
                if self._dropped is not None:
                    raise self._dropped
        send(self._pipe, replace(task, content=Content()), [task.content])
        deadline = time.monotonic() + self._limit
        while not self._wait(self._pipe):
            if self._limit and time.monotonic() > deadline:
                error = OwnersLimitError(
                    "it took longer than the owner of this device allows"
                    f" ({self._limit:g} s, limits.round-seconds)"
                )
                self.drop(self.working, error)
        received, (content,) = receive(self._pipe)
        answer: Answer = replace(received, content=content)
        return answer

    def _wait(self, pipe: Connection) -> bool:
        """Return whether the pipe has an answer within 0.2 s; raise EOFError without a process."""
        if pipe.poll(0.2):
            return True
        # checked because a process that the app has started may hold the pipe open
        if not self.runs and not pipe.poll():
            raise EOFError
        return False

    def _kill(self) -> None:
        process = self._process
        if process is None:
            return
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._end_seconds)
        _signal(process, signal.SIGKILL)  # also ends the processes that the app has started
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)

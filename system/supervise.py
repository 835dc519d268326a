"""Programs that are kept running: each is started again after a pause whenever it ends, and how it ended is said.

What systemd or Docker starts again needs no more than `exit_reason`.
"""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn

from .interrupts import hold_signals, release_signals

HELD_SECONDS = 60.0
"""How long a program must have run for the next pause to be the shortest again."""

STOP_SECONDS = 15.0
"""How long a program may take to end in order before it is killed."""

CANNOT_RUN = 78
"""Exit code of a program that would end in the same way if it were started again: EX_CONFIG of sysexits."""

LOOK_SECONDS = 0.2
"""The pause between two looks at whether programs are still running."""

STOPPING = (signal.SIGTERM, signal.SIGINT)


class Supervised(ABC):
    """A program that is started again whenever it ends.

    The pause doubles with each start, from `shortest` to `longest` seconds, and is reset once it has run for
    HELD_SECONDS.
    """

    def __init__(self, name: str, shortest: float, longest: float) -> None:
        self.name = name
        self._shortest, self._longest = shortest, longest
        self._pause, self._next_start, self._started = shortest, 0.0, 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> subprocess.Popen[bytes]:
        """Start the program; OSError if the system refuses, CannotStartError if something else is in its way."""

    @abstractmethod
    def report(self, fault: str, pause: float) -> None:
        """Say what is wrong with the program, which will be started again after a pause."""

    def give_up(self) -> NoReturn:
        """End this process too: the program has said why it cannot run, and would say it again."""
        sys.exit(CANNOT_RUN)

    def check(self) -> None:
        """Start the program if it is time to, and notice its end."""
        if self._process is None:
            if time.monotonic() >= self._next_start:
                self._start()
        elif (code := self._process.poll()) is not None:
            self._process = None
            if code == CANNOT_RUN:
                self.give_up()
            if time.monotonic() - self._started > HELD_SECONDS:
                self._pause = self._shortest
            self._start_later(f"the {self.name} ended ({exit_reason(code)})")

    def stop(self) -> bool:
        """End the program, where it runs; return whether it had to be killed, as it did not end in order."""
        if self._process is None:
            return False
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return True
        return False

    def _start(self) -> None:
        try:
            self._process = self.start()
        except CannotStartError as error:
            self._start_later(str(error))
        except OSError as error:  # no memory, or too many processes
            self._start_later(f"the {self.name} cannot be started ({error.strerror})")
        self._started = time.monotonic()

    def _start_later(self, fault: str) -> None:
        self.report(fault, self._pause)
        self._next_start = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, self._longest)


class CannotStartError(Exception):
    """Why a program cannot be started just now."""


class StopSignal:
    """Whether SIGTERM or SIGINT has come to this process since it began, or since `become`."""

    def __init__(self) -> None:
        self.came = False
        for number in STOPPING:
            signal.signal(number, self._note)
        release_signals(*STOPPING)

    def _note(self, number: int, frame: object) -> None:
        self.came = True


def supervise(programs: Sequence[Supervised], stopped: StopSignal, is_over: Callable[[], bool] = lambda: False) -> None:
    """Keep programs running until this process is to stop, or something else is over."""
    while not stopped.came and not is_over():
        for program in programs:
            program.check()
        time.sleep(LOOK_SECONDS)


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

    Signals wait until the module has its StopSignal.
    """
    with hold_signals(*STOPPING):
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 (this Python)

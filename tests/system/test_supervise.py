"""Programs that are kept running: pauses between starts, ends that are explained, and an end in order."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fairbloom.system import supervise
from fairbloom.system.supervise import CannotStartError, StopSignal, Supervised, exit_reason


class Sleeper(Supervised):
    """A program that does nothing, or what the code says; what is reported of it is kept."""

    def __init__(self, code: str = "import time; time.sleep(600)") -> None:
        super().__init__("sleeper", 1.0, 30.0)
        self.code = code
        self.output: int | None = None
        self.in_the_way = ""
        self.reports: list[tuple[str, float]] = []

    def start(self) -> subprocess.Popen[bytes]:
        if self.in_the_way:
            raise CannotStartError(self.in_the_way)
        return subprocess.Popen([sys.executable, "-c", self.code], stdout=self.output)

    def report(self, fault: str, pause: float) -> None:
        self.reports.append((fault, pause))

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def end(self, number: int = signal.SIGKILL) -> None:
        """Let its process end, and see it."""
        self.process.send_signal(number)
        self.process.wait(300)
        self.check()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as the supervisor sees it."""
    now = [1000.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    made = Sleeper()
    yield made
    made.stop()


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_program_that_ends_is_started_again_after_pauses(sleeper: Sleeper, clock: list[float]) -> None:
    sleeper.check()
    for pause in (1, 2, 4, 8, 16, 30, 30):
        sleeper.end()
        clock[0] += pause - 0.1
        sleeper.check()
        assert sleeper._process is None
        clock[0] += 0.2
        sleeper.check()
        assert sleeper.process.poll() is None
    clock[0] += supervise.HELD_SECONDS + 1
    sleeper.end()
    assert [pause for _, pause in sleeper.reports] == [1, 2, 4, 8, 16, 30, 30, 1]
    assert {fault for fault, _ in sleeper.reports} == {"the sleeper ended (killed by SIGKILL)"}


def test_a_program_that_cannot_run_is_not_started_faster(sleeper: Sleeper, clock: list[float]) -> None:
    """No crash loop: ten minutes of a program that ends at once are some two dozen starts."""
    started = 0
    while clock[0] < 1600:
        before = sleeper._process
        sleeper.check()
        if sleeper._process is not before and sleeper._process is not None:
            started += 1
            sleeper.end()
        clock[0] += 0.5
    assert 20 <= started <= 25


def test_a_program_that_the_system_does_not_start_is_tried_again(
    sleeper: Sleeper, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*command: object, **given: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", full)
        sleeper.check()
        sleeper.check()
    assert sleeper.reports == [("the sleeper cannot be started (Resource temporarily unavailable)", 1.0)]
    clock[0] += 2
    sleeper.check()
    assert sleeper.process.poll() is None


def test_what_is_in_a_programs_way_is_reported_until_it_is_gone(sleeper: Sleeper, clock: list[float]) -> None:
    sleeper.in_the_way = "there is a wall"
    for _ in range(2):
        sleeper.check()
        clock[0] += 40
    assert sleeper.reports == [("there is a wall", 1.0), ("there is a wall", 2.0)]
    sleeper.in_the_way = ""
    sleeper.check()
    assert sleeper.process.poll() is None


def test_a_program_is_ended_in_order(sleeper: Sleeper) -> None:
    sleeper.check()
    assert not sleeper.stop()
    assert sleeper.process.returncode == -signal.SIGTERM
    assert not Sleeper().stop()  # one that was never started


def test_a_program_that_does_not_end_in_order_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "STOP_SECONDS", 0.5)
    deaf = Sleeper(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    read, deaf.output = os.pipe()
    deaf.check()
    os.close(deaf.output)
    with os.fdopen(read, "rb") as said:  # a line may come in pieces
        assert said.readline() == b"deaf\n"
    assert deaf.stop()
    assert deaf.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_programs_are_looked_after_until_a_signal_comes(sleeper: Sleeper, handlers: None, number: int) -> None:
    def stop_once_it_runs() -> bool:
        if sleeper._process is not None:
            os.kill(os.getpid(), number)
        return False

    stopped = StopSignal()
    supervise.supervise([sleeper], stopped, stop_once_it_runs)
    assert stopped.came
    assert sleeper.process.poll() is None  # who supervises ends it


def test_programs_are_looked_after_until_something_is_over(sleeper: Sleeper, handlers: None) -> None:
    supervise.supervise([sleeper], StopSignal(), lambda: sleeper._process is not None)
    assert sleeper.process.poll() is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-40, "killed by signal 40"),
    ],
)
def test_how_a_process_ended_is_said(code: int, words: str) -> None:
    assert exit_reason(code) == words

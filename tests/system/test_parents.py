"""A process that ends with its parent, killed or not.

Descriptions of how a process ended.

Ctrl-C and SIGTERM end a program cleanly: while it starts, while it works, and while it ends.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from benchmarks.flower import ROOT, wait_until
from fairbloom.cli import main as cli
from fairbloom.command import interrupt
from fairbloom.system.supervise import become, exit_reason
from tests.commands import forked

CHILD = """
import os, sys, time
from fairbloom.system.parents import end_with_parent
while "late" in sys.argv and os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
end_with_parent(int(sys.argv[1]))
print("watching", file=sys.stderr, flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]]
child = subprocess.Popen(command, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def family(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Give a parent that does nothing, and the id of its child, which must end with the parent."""
    command = [sys.executable, "-c", PARENT, CHILD, *arguments]
    # The parent writes to one pipe and the child to the other: either may be the first.
    parent = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    child = int(parent.stdout.readline())
    try:
        yield parent, child
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        parent.stderr.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(number: int) -> None:
    with family() as (parent, child):
        assert parent.stderr.readline() == "watching\n"
        assert runs(child)
        parent.send_signal(number)
        wait_until(lambda: not runs(child), lambda: "the child lives on")


@pytest.mark.slow
def test_a_child_of_an_already_killed_parent_ends_too() -> None:
    with family("late") as (parent, child):
        assert runs(child)
        parent.kill()
        parent.wait()
        wait_until(lambda: not runs(child), lambda: "the child lives on")


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


LINE = "interrupted: the same command begins again; a run continues after its last finished round\n"


class Impatient(io.StringIO):
    """A terminal with a user who presses Ctrl-C once more while it prints."""

    def write(self, text: str) -> int:
        signal.raise_signal(signal.SIGINT)
        return super().write(text)


def run_as_command(function: Callable[[], None]) -> None:
    sys.argv = ["fairbloom"]
    signal.signal(signal.SIGINT, interrupt)  # as soon as a command is imported
    cli.app = typer.Typer()
    cli.app.command()(function)
    cli.main()


def press_once() -> None:
    run_as_command(lambda: signal.raise_signal(signal.SIGINT))


def press_again_while_that_is_said() -> None:
    sys.stderr = Impatient()
    press_once()


def press_again_on_the_way_out() -> None:
    def run() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            print("an end that takes long")

    run_as_command(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("press", "said"),
    [(press_once, LINE), (press_again_while_that_is_said, ""), (press_again_on_the_way_out, "")],
)
def test_ctrl_c_ends_at_once_with_the_same_code(
    tmp_path: Path, press: Callable[[], None], said: str
) -> None:
    """Any later line would be a traceback; the second time nothing is said."""
    ended = forked(tmp_path, press)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", said)


def begin_and_be_stopped(number: str) -> None:
    become("tests.system.stopped", number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_program_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The program imports its modules meanwhile; SIGINT would end it with a traceback."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ended = forked(tmp_path, begin_and_be_stopped, str(int(number)))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped in order\n", "")

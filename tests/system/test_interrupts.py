"""Ctrl-C and SIGTERM end a program cleanly: while it starts, while it works, and while it ends."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fairbloom.cli import main as cli
from fairbloom.command import interrupt
from fairbloom.system.supervise import become
from tests.checkout import ROOT
from tests.commands import forked

pytestmark = pytest.mark.slow  # they start processes

LINE = "interrupted: the same command begins again; a run continues after its last finished round\n"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_during_imports_ends_the_command_silently(tmp_path: Path) -> None:
    words = ("run", "--clients", "5", "--rounds", "1000000", "--out", str(tmp_path / "a"))
    command = [sys.executable, "-m", "fairbloom", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while (
            process.poll() is None and "numpy" not in Path(f"/proc/{process.pid}/maps").read_text()
        ):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    # if this process had to wait for a processor, the command line may have begun
    assert (process.returncode, said) in {(-signal.SIGINT, ""), (130, LINE)}


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


def test_ctrl_c_once_more_ends_at_once_with_the_same_code(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Any later line would be a traceback."""
    ended = forked(tmp_path, press_once)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", LINE)
    for press in (press_again_while_that_is_said, press_again_on_the_way_out):
        with subtests.test(press=press):
            ended = forked(tmp_path, press)
            assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def begin_and_be_stopped(number: str) -> None:
    become("tests.system.stopped", number)


def test_a_signal_waits_until_a_program_looks_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    """The program imports its modules meanwhile; SIGINT would end it with a traceback."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for number in (signal.SIGINT, signal.SIGTERM):
        with subtests.test(number=number):
            ended = forked(tmp_path, begin_and_be_stopped, str(int(number)))
            assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped in order\n", "")

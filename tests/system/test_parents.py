"""A process that ends with its parent, killed or not."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.flower import ROOT, wait_until

pytestmark = pytest.mark.slow  # they start processes

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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(number: int) -> None:
    with family() as (parent, child):
        assert parent.stderr is not None
        assert parent.stderr.readline() == "watching\n"
        assert runs(child)
        parent.send_signal(number)
        wait_until(lambda: not runs(child), lambda: "the child lives on")


def test_a_child_of_an_already_killed_parent_ends_too() -> None:
    with family("late") as (parent, child):
        assert runs(child)
        parent.kill()
        parent.wait()
        wait_until(lambda: not runs(child), lambda: "the child lives on")

"""What our processes have in common: they end together, and do not let refusals fill the disk."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.flower import ROOT, wait_until
from fairbloom.deploy.operator.audit import text
from fairbloom.deploy.server import refusals
from fairbloom.deploy.server.refusals import Refusals

CHILD = """
import os, sys, time
from fairbloom.deploy.processes import end_with
if len(sys.argv) > 2:
    time.sleep(float(sys.argv[2]))
end_with(int(sys.argv[1]))
print("watching", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def family(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A parent that does nothing, and the id of its child, which is to end with it."""
    command = [sys.executable, "-c", PARENT, CHILD, *arguments]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        yield parent, child
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Return whether a process is there that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(number: int) -> None:
    with family() as (parent, child):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "watching\n"
        assert runs(child)
        parent.send_signal(number)
        wait_until(lambda: not runs(child), 30, lambda: "the child lives on")


def test_a_child_whose_parent_was_killed_before_it_looked_ends_too() -> None:
    with family("1.0") as (parent, child):
        parent.kill()
        parent.wait()
        assert runs(child)
        wait_until(lambda: not runs(child), 30, lambda: "the child lives on")


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as refusals see it."""
    now = [1000.0]
    monkeypatch.setattr("fairbloom.deploy.server.refusals.time.monotonic", lambda: now[0])
    return now


def noted(folder: Path) -> list[tuple[str, int]]:
    return [(line["event"], line["times"]) for line in map(json.loads, text(folder).splitlines())]


def test_an_attempt_is_noted_once_a_minute_with_how_often(tmp_path: Path, clock: list[float]) -> None:
    seen = Refusals(tmp_path)
    assert [seen.note("a key", peer=f"ipv4:192.0.2.7:{port}") for port in range(100)] == [True] + [False] * 99
    seen.note("a key", peer="ipv4:192.0.2.8:1")
    clock[0] += refusals.SECONDS
    seen.note("a key", peer="ipv4:192.0.2.7:1")
    assert noted(tmp_path) == [("refused: a key", 1), ("refused: a key", 1), ("refused: a key", 100)]


@pytest.mark.parametrize(
    ("peer", "kept"),
    [
        ("ipv4:192.0.2.7:50000", "192.0.2.7"),
        ("ipv6:%5B2001:db8::1%5D:50000", "%5B2001:db8::1%5D"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_a_peer_is_noted_without_its_port(tmp_path: Path, peer: str, kept: str) -> None:
    Refusals(tmp_path).note("a key", peer=peer)
    assert json.loads(text(tmp_path))["peer"] == kept


def test_no_variety_of_attempts_fills_disk_or_memory(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "DIFFERENT", 5)
    seen = Refusals(tmp_path)
    for number in range(500):
        seen.note("a call", call=f"/{number}" + "x" * 100_000)
    assert noted(tmp_path) == [("refused: a call", 1)] * 6
    assert len(seen._noted) <= 6
    assert len(seen._since) <= 6
    assert sum(len(word) for attempt in (*seen._noted, *seen._since) for word in attempt) < 5000
    clock[0] += refusals.SECONDS
    seen.note("a call", call="/another")
    assert noted(tmp_path)[-1] == ("refused: a call", 495)


def test_a_log_that_cannot_be_written_does_not_let_anybody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = Refusals(tmp_path / "not there")
    with caplog.at_level(logging.WARNING, "flwr"):
        assert seen.note("a key")
    assert "cannot be written" in caplog.text

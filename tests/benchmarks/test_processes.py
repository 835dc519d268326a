"""Ports: what one test is given, no other one is, in no process."""

import socket
import subprocess
import sys

import pytest

from benchmarks import processes
from benchmarks.processes import PORTS, free_port

DRAW = "from benchmarks.processes import free_port; print(*(free_port() for _ in range(500)), flush=True); input()"


def test_processes_at_once_share_no_port() -> None:
    """500 each of 12,768: if they drew blindly, four would share about 120."""
    drawing = [
        subprocess.Popen([sys.executable, "-c", DRAW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    drawn = [int(port) for process in drawing if process.stdout for port in process.stdout.readline().split()]
    for process in drawing:
        process.communicate("\n")
    assert len(set(drawn)) == len(drawn) == 2000
    assert set(drawn) <= set(PORTS)


def test_a_port_that_is_listened_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener, socket.create_server(("0.0.0.0", 0)) as wide:
        free = free_port()
        processes._CLAIMED.pop().close()
        taken = listener.getsockname()[1], wide.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", [*taken, free])
        assert free_port() == free


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's two ports were one and the same, once in many thousand times."""
    first = free_port()
    second = free_port()
    processes._CLAIMED.pop().close()
    monkeypatch.setattr(processes, "PORTS", [first, second])
    assert free_port() == second

"""Ports: what one test is given, no other one is, in no process."""

import socket
import subprocess
import sys

import pytest

from tests.deploy import processes
from tests.deploy.processes import PORTS, free_port

DRAW = "from tests.deploy.processes import free_port; print(*(free_port() for _ in range({})), flush=True); input()"


def drawing(ports: int) -> subprocess.Popen[str]:
    """Start a process that prints ports, and keeps them until it reads a line."""
    command = [sys.executable, "-c", DRAW.format(ports)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> list[int]:
    """Let a process end, and return what it drew."""
    return [int(port) for port in process.communicate("\n")[0].split()]


def test_processes_at_once_share_no_port() -> None:
    """500 each of 12,768: if they drew blindly, four would share about 120."""
    at_once = [drawing(500) for _ in range(4)]
    first = [[int(port) for port in process.stdout.readline().split()] for process in at_once if process.stdout]
    for process in at_once:
        end(process)
    drawn = [port for each in first for port in each]
    assert len(set(drawn)) == len(drawn) == 2000
    assert set(drawn) <= set(PORTS)


def test_a_port_in_use_or_given_before_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ports of a server were one and the same, once in many thousand times."""
    (free,) = end(drawing(1))
    given = free_port()
    with socket.create_server(("127.0.0.1", 0)) as narrow, socket.create_server(("0.0.0.0", 0)) as wide:
        listened = [each.getsockname()[1] for each in (narrow, wide)]
        monkeypatch.setattr(processes, "PORTS", [given, *listened, free])
        assert free_port() == free

"""The loop that connects a client again whenever its connection ends."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairbloom.deploy.device import supervisor
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.processes import duration
from fairbloom.system.supervise import CANNOT_RUN
from tests.deploy.flower import PATIENCE, ROOT

LOOP = """
import sys
from fairbloom.deploy.device import supervisor
supervisor.connection_fault = lambda settings: None
supervisor.SHORTEST_PAUSE, supervisor.LONGEST_PAUSE = 0.05, 0.2
number = -1
def serve(client, instance, worker, contexts, outage):
    global number
    number += 1
    names = globals() | locals()
    exec(sys.argv[1], names)
    return names["faults"][min(number, len(names["faults"]) - 1)]
import fairbloom.deploy.flower.device.session as session
session.serve = serve
supervisor.run(supervisor.ClientSettings(superlink="a:1", insecure=True))
"""
"""A client whose connections are this program, each of which ends with one of its `faults`."""


@contextmanager
def lines_of(program: str) -> Iterator[Iterator[str]]:
    """The lines that a client prints; it is ended in order."""
    client = subprocess.Popen([sys.executable, "-c", LOOP, program], stderr=subprocess.PIPE, text=True)
    assert client.stderr is not None
    try:
        yield map(str.rstrip, client.stderr)
    finally:
        client.terminate()
        code = client.wait(PATIENCE)
        client.stderr.close()
    assert code == 0


def test_a_client_connects_again_for_ever_and_says_a_fault_once() -> None:
    program = 'faults = ["refused"] * 5 + ["revoked"] * 5 + ["expired"]'
    with lines_of(program) as lines:
        said = [next(lines) for _ in range(3)]
    assert said == [
        f"fairbloom client: {fault}; retrying until it works" for fault in ("refused", "revoked", "expired")
    ]


def test_a_client_that_is_back_says_so_and_a_later_fault_again() -> None:
    program = 'faults = ["refused"]\nif number == 3: outage.end()'
    with lines_of(program) as lines:
        first, back, again = (next(lines) for _ in range(3))
    assert re.fullmatch(r"fairbloom client: back: connected again after \d+ s", back)
    assert first == again == "fairbloom client: refused; retrying until it works"


def test_a_bug_of_ours_has_a_traceback_and_the_client_connects_again() -> None:
    program = 'faults = ["refused"]\nif number == 0: raise KeyError("x")'
    with lines_of(program) as lines:
        said = list(itertools.takewhile(lambda line: "refused; retrying" not in line, lines))
    assert said[0].startswith("Traceback")
    assert said[-1] == "fairbloom client: the connection ended by KeyError; retrying until it works"


def test_a_worker_that_cannot_run_here_ends_its_client() -> None:
    program = 'faults = [""]\nimport sys; sys.exit(78)'
    client = subprocess.run([sys.executable, "-c", LOOP, program], stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert client.returncode == CANNOT_RUN


def no_state_folder(folder: Path, *, as_nobody: bool = False) -> str:
    """Return what a client says about its state folder."""
    program = (
        "import os, sys; from fairbloom.deploy.device.supervisor import ClientSettings, state_folder_fault\n"
        f"if {as_nobody} and os.getuid() == 0: os.setuid(65534)\n"
        "print(state_folder_fault(ClientSettings(superlink='a:1', insecure=True, state_dir=sys.argv[1])))"
    )
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_a_state_folder_that_cannot_be_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below, there = tmp_path / "file" / "x", tmp_path / "file"
    assert no_state_folder(below) == f"state-dir = {below} cannot be made: Not a directory"
    assert no_state_folder(there) == f"state-dir = {there} cannot be made: File exists"
    assert no_state_folder(tmp_path / "new" / "state") == "None"


def test_a_state_folder_that_others_own_is_named() -> None:
    not_mine = "state-dir = /: the account that runs this client may not write there"
    assert no_state_folder(Path("/"), as_nobody=True) == not_mine
    assert no_state_folder(Path("/x/y"), as_nobody=True) == "state-dir = /x/y cannot be made: Permission denied"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (99.4, "99 s"), (180, "3 min"), (10_800, "3 h")])
def test_lengths_of_time_are_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_pause_can_be_cut_short_by_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "connection_fault", lambda client: "a wall")
    monkeypatch.setattr(supervisor, "SHORTEST_PAUSE", 600.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        supervisor.run(ClientSettings(superlink="a:1", insecure=True))  # or the test hangs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

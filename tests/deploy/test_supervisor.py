"""The loop that starts a client's node again whenever it ends."""

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

from benchmarks.flower import PATIENCE, ROOT, wait_until
from fairbloom.deploy.device import supervisor
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.processes import duration

LOOP = """
import sys
from fairbloom.deploy.device import supervisor
supervisor.connection_fault = lambda settings: None
supervisor.SHORTEST_PAUSE, supervisor.LONGEST_PAUSE = 0.05, 0.2
supervisor.ClientSettings.command = lambda self: [sys.executable, "-c", sys.argv[1]]
supervisor.run(supervisor.ClientSettings(superlink="a:1", insecure=True))
"""


def supervised(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", LOOP, program], stderr=subprocess.PIPE, text=True)


@contextmanager
def lines_of(loop: subprocess.Popen[str]) -> Iterator[Iterator[str]]:
    """The lines that a loop prints; it is ended in order."""
    assert loop.stderr is not None
    try:
        yield map(str.rstrip, loop.stderr)
    finally:
        loop.terminate()
        code = loop.wait(PATIENCE)
        loop.stderr.close()
    assert code == 0


COUNTED = """
import pathlib, sys, time
count = pathlib.Path({count!r})
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
"""


def starts(count: Path) -> int:
    return int(count.read_text() or 0) if count.exists() else 0


def wait_for_starts(count: Path, number: int) -> None:
    wait_until(lambda: starts(count) >= number)


def test_a_node_that_ends_is_started_again_for_ever_and_a_fault_is_said_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = COUNTED.format(count=str(count)) + 'print("no luck at", time.time()); raise SystemExit(3 + (number > 5))'
    with lines_of(supervised(program)) as lines:
        assert next(lines).startswith("no luck at")
        assert next(lines) == "fairbloom client: the SuperNode ended (exit code 3); retrying until it works"
        wait_for_starts(count, 6)
        assert next(lines) == "fairbloom client: the SuperNode ended (exit code 4); retrying until it works"
        wait_for_starts(count, 10)


def test_a_start_that_fails_in_another_way_is_printed(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = COUNTED.format(count=str(count)) + 'print("no luck" if number < 3 else "no disk"); raise SystemExit(3)'
    with lines_of(supervised(program)) as lines:
        said = [next(lines) for _ in range(3)]
    assert [said[0], said[2]] == ["no luck", "no disk"]


def test_a_client_that_is_back_says_so_and_what_its_node_said(tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = (
        COUNTED.format(count=str(count))
        + 'print("beginning", flush=True)\nif number < 4: raise SystemExit(3)\n'
        + 'print("INFO: SuperNode ID: 7", flush=True); print("at work", flush=True); time.sleep(60)'
    )
    with lines_of(supervised(program)) as lines:
        said = [next(lines) for _ in range(6)]
    assert re.fullmatch(r"fairbloom client: back: connected again after \d+ s", said.pop(2))
    assert said == [
        "beginning",
        "fairbloom client: the SuperNode ended (exit code 3); retrying until it works",
        *("beginning", "INFO: SuperNode ID: 7", "at work"),
    ]


def test_a_node_is_ended_in_order_with_its_client() -> None:
    program = "import os, signal, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"
    with lines_of(supervised(program)) as lines:
        node = int(next(lines))
    with pytest.raises(ProcessLookupError):
        os.kill(node, 0)


def test_a_killed_node_is_named_so() -> None:
    with lines_of(supervised("import os; os.kill(os.getpid(), 9)")) as lines:
        assert "killed by SIGKILL" in next(lines)


def no_state_folder(folder: Path, *, as_nobody: bool = False) -> str:
    """Return what a client says about its state folder."""
    program = (
        "import os, sys; from fairbloom.deploy.device.supervisor import ClientSettings, Node\n"
        f"if {as_nobody} and os.getuid() == 0: os.setuid(65534)\n"
        "print(Node(ClientSettings(superlink='a:1', insecure=True, state_dir=sys.argv[1]))._state_folder_fault())"
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

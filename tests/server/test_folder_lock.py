"""Two processes and one run folder: the second says who has it, at once or after a minute in which it waits."""

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.server.run_folder import lock as folder_lock
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.lock import locked_folder
from fairbloom.simulation.run import simulate
from fairbloom.system import lock
from tests.simulation.helpers import Outcome, run, small
from tests.system.helpers import held_elsewhere


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to the folder until its input ends."""
    folder.mkdir()
    with held_elsewhere(folder / ".lock") as process:
        yield process


def test_the_second_process_names_the_first_and_changes_nothing(
    folder: Path, holder: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        with pytest.raises(RunFolderError) as refusal, locked_folder(folder):
            pass
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    who = f"process {holder.pid} on {socket.gethostname()}"
    assert str(refusal.value) == f"{folder} is written by {who}: wait for it to end, or choose another folder (--out)"
    said = list(dict.fromkeys(r.getMessage() for r in caplog.records if "written by" in r.getMessage()))
    assert said == [f"{folder} is written by {who}: waiting up to a minute for it to end"]
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_the_second_process_goes_on_once_the_first_has_ended(
    folder: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "WAIT_SECONDS", 60.0)
    assert holder.stdin is not None
    threading.Timer(0.3, holder.stdin.close).start()
    with locked_folder(folder):
        assert (folder / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert holder.wait() == 0
    assert list(folder.iterdir()) == []


def test_a_killed_process_leaves_no_lock(folder: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    assert (folder / ".lock").exists()
    run(folder)
    assert not (folder / ".lock").exists()


def test_two_runs_at_once_in_one_process_do_not_write_together(folder: Path) -> None:
    refused: list[str] = []

    def second(recorded: object) -> None:
        with pytest.raises(RunFolderError, match=f"is written by process {os.getpid()} on"):
            simulate(small(folder, num_rounds=2))
        refused.append("refused")

    simulate(small(folder, num_rounds=2), second)
    assert refused == ["refused", "refused"]
    assert not Outcome.of(folder).differences(Outcome.of(run(folder.with_name("alone"), num_rounds=2)))


def test_a_run_that_fails_gives_the_folder_back(folder: Path) -> None:
    def fail(recorded: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulate(small(folder), fail)
    assert not (folder / ".lock").exists()
    run(folder)


def test_a_finished_run_is_shown_though_its_folder_cannot_be_locked(folder: Path) -> None:
    run(folder, num_rounds=2)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with locked_folder(folder):
        assert simulate(small(folder, num_rounds=2)) == folder
    assert {path: path.stat().st_mtime_ns for path in before if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


def test_a_link_in_place_of_the_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    (folder / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RunFolderError, match=r"the file \.lock cannot be written"):
        run(folder)
    assert (tmp_path / "precious").read_text() == "precious"

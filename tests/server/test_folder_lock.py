"""Two processes and one run folder: the second says who has it, at once or after a minute in which
it waits."""

import os
import socket
import subprocess
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
    folder: Path, holder: subprocess.Popen[str], said: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunFolderError) as refusal, locked_folder(folder):
        pass
    who = f"process {holder.pid} on {socket.gethostname()}"
    assert (
        str(refusal.value)
        == f"{folder} is written by {who}: wait for it to end, or choose another folder (--out)"
    )
    waiting = [*dict.fromkeys(words for words in said.messages if "written by" in words)]
    assert waiting == [f"{folder} is written by {who}: waiting up to a minute for it to end"]
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_two_runs_at_once_in_one_process_do_not_write_together(folder: Path) -> None:
    refused: list[str] = []

    def second(recorded: object) -> None:
        with pytest.raises(RunFolderError, match=f"is written by process {os.getpid()} on"):
            simulate(small(folder, num_rounds=2))
        refused.append("refused")

    simulate(small(folder, num_rounds=2), second)
    assert refused == ["refused", "refused"]
    assert not Outcome.of(folder).differences(
        Outcome.of(run(folder.with_name("alone"), num_rounds=2))
    )


def test_a_finished_run_in_an_unlockable_folder_is_shown(folder: Path) -> None:
    run(folder, num_rounds=2)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with locked_folder(folder):
        assert simulate(small(folder, num_rounds=2)) == folder
    assert {path: path.stat().st_mtime_ns for path in before if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }

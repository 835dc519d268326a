"""The status of a federation, from the files of its server."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.runs import Order, RunFiles, submit
from fairbloom.server.progress import ANNOUNCED
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.system.lock import exclusive_lock
from tests.experiments.helpers import fairbloom

ORDER = Order("fairbloom.serverapp:app", "fairbloom", "0.1.0", {})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds."""
    out = tmp_path_factory.mktemp("run") / "first"
    return simulate(
        Settings.of(
            {"clients": 2, "num-rounds": 2, "device": "cpu", "method": "fedfv", "out": str(out)}
        )
    )


def say_now(made: Path, at: float, **about: Any) -> None:
    (made / "state" / "now.json").write_text(json.dumps({"at": at, **about}))


def survey(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert fairbloom("deploy", "status", "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def write_run(
    made: Path, status: int | None = None, log: str = "", folder: Path | None = None
) -> RunFiles:
    run = submit(Federation.read(made).runs, ORDER)
    run.log.write_text(log)
    if folder is not None:
        (run.folder / ANNOUNCED).write_text(str(folder))
    if status is not None:
        run.end(status)
    return run


def test_clients_are_online_away_never_seen_or_revoked(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c", "d", "--examples", "7") == 0
    assert fairbloom("deploy", "revoke", "d") == 0
    say_now(made, time.time(), online={"a": 2}, seen={"a": 5.0, "b": 0.0, "d": 1.0})
    with exclusive_lock(made / "state" / "lock"):
        found = survey(capsys)
        assert found["server"] == "up"
        states = {name: client["state"] for name, client in found["clients"].items()}
        assert states == {"a": "online", "b": "away", "c": "never", "d": "revoked"}
        assert found["clients"]["b"]["last-seen"] == "1970-01-01T00:00:00+00:00"
        assert found["clients"]["a"]["refused-with-same-key"] == 2
        assert (found["clients"]["c"]["partition-id"], found["clients"]["c"]["examples"]) == (2, 7)
        say_now(made, time.time() - 60.0, online={"a": 2}, seen={"a": 5.0})
        assert survey(capsys)["clients"]["a"]["state"] == "away"  # the server hangs
    say_now(made, time.time(), online={"a": 2}, seen={"a": 5.0})
    found = survey(capsys)  # the server was killed just now
    assert (found["server"], found["clients"]["a"]["state"]) == ("down", "away")


def test_runs_show_their_rounds_and_how_they_ended(
    made: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(made, status=0, folder=run_folder)
    write_run(made, status=1, log="first\nthe run ends: nothing was learned\n")
    write_run(made, status=130, folder=tmp_path / "gone")
    going = write_run(made, folder=run_folder)
    waiting = write_run(made)
    runs = survey(capsys)["runs"]
    assert [run["state"] for run in runs] == [
        "waiting",
        "running",
        "stopped",
        "failed",
        "completed",
    ]
    assert [run["exit-status"] for run in runs] == [None, None, 130, 1, 0]
    assert (runs[0]["run"], runs[1]["run"]) == (waiting.number, going.number)
    assert (runs[1]["method"], runs[1]["round"], runs[1]["of-rounds"]) == ("fedfv", 2, 2)
    assert "unknown" in runs[2]
    assert runs[3]["said"] == "the run ends: nothing was learned"
    assert runs[4]["folder"] == str(run_folder)


def test_the_last_run_has_its_end_and_its_folder(
    made: Path,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    write_run(made, status=1)
    run = write_run(made, status=0, folder=run_folder)
    os.utime(run.folder / "status", (5.0, 5.0))
    assert survey(capsys)["runs"][0]["ended"] == "1970-01-01T00:00:05+00:00"
    assert fairbloom("deploy", "status") == 0
    assert (
        f"the last, run {run.number}, completed at 1970-01-01T00:00:05+00:00: fairbloom show"
        f" {run_folder}\n"
    ) in capsys.readouterr().out


def test_a_damaged_run_folder_does_not_hide_other_entries(
    made: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "damaged")
    (folder / "rounds.csv").write_text("nonsense\n1")
    write_run(made, folder=folder)
    (run,) = survey(capsys)["runs"]
    assert run["unknown"]
    assert fairbloom("deploy", "status") == 0
    assert "not known" in capsys.readouterr().out


def test_the_tables_show_what_is_wrong(
    made: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a", "b") == 0
    write_run(made, folder=run_folder)
    write_run(made, status=1, log="the run ends: \x1b[2Jnothing was learned\n")
    say_now(made, time.time(), online={"a": 0}, seen={"a": 5.0})
    assert fairbloom("deploy", "status") == 0
    said = capsys.readouterr().out
    assert "server: down" in said
    assert "clients: 1 away, 1 never" in said
    assert "fedfv on digits, round 2 of 2" in said
    assert "nothing was learned" in said
    assert "\x1b[2J" not in said
    assert "certificate: the server's holds for 398 more days" in said


def test_connections_and_the_current_run_are_shown(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_run(made), write_run(made)
    about = {"run": second.number, "connections": {"open": 12, "limit": 768}}
    say_now(made, time.time(), **about)
    with exclusive_lock(made / "state" / "lock"):
        found = survey(capsys)
        assert fairbloom("deploy", "status") == 0
    assert found["connections"] == {"open": 12, "limit": 768}
    assert "connections: 12 of at most 768" in capsys.readouterr().out
    states = {run["run"]: run["state"] for run in found["runs"]}
    assert states == {first.number: "waiting", second.number: "running"}
    assert survey(capsys)["connections"] == {"open": None, "limit": None}  # no server runs

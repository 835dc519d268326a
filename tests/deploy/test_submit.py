"""Runs on a federation: submitted, watched, stopped; with an answering machine in place of Flower."""

from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.operator import submit as runs
from fairbloom.deploy.operator.submit import app_folder
from tests.experiments.helpers import ROOT, fairbloom

from .commands import Machine, noted

# Runs ---------------------------------------------------------------------------------------------------------------


def listed(status: str) -> dict[str, Any]:
    return {"success": True, "runs": [{"status": status}]}


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("stopped", 1)])
def test_submit_streams_the_log_once_and_tells_the_truth(
    made: Path,
    machine: Machine,
    status: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lists = [listed("running"), listed(f"finished:{status}")]
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "round 1\nround 2\n"}, list=lists)
    monkeypatch.setattr(runs, "AGAIN_SECONDS", 0.01)
    capsys.readouterr()
    assert fairbloom("deploy", "submit", "--set", "method=fedfv", "--set", "num-rounds=2") == code
    assert capsys.readouterr().out == f"run 9\nround 1\nround 2\nrun 9: finished:{status}\n"
    submitted = machine.asked[0]
    assert submitted[0] == "run"
    assert submitted[4] == 'method="fedfv" num-rounds=2'


def test_a_submission_is_noted_and_so_is_one_that_was_refused(made: Path, machine: Machine) -> None:
    machine.answers(run=[{"success": True, "run-id": "9"}, {"success": False, "error-message": "[code: 14] no"}])
    assert fairbloom("deploy", "submit", "--detach", "--set", "method=fedfv") == 0
    assert fairbloom("deploy", "submit", "--detach", "--set", "method=fedfv") == 2
    settings = {"method": "fedfv", "settings": 'method="fedfv"'}
    assert noted(made) == [
        {"event": "submit", **settings, "run-id": "9"},
        {"event": "refused", "command": "submit", **settings, "reason": f"flwr run {ROOT}: [code: 14] no"},
    ]


@pytest.mark.parametrize("key", ["state-dir", "data-dir"])
def test_a_path_of_devices_is_no_setting_of_a_run(
    made: Path, machine: Machine, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--set", f"{key}=/etc") == 2
    assert f"{key} = '/etc' has no effect on devices: each has its own, {key} in its client.toml" in (
        capsys.readouterr().err
    )
    assert machine.asked == []


def test_sizes_that_clients_were_enrolled_with_go_along(made: Path, machine: Machine) -> None:
    machine.answers(run={"success": True, "run-id": "9"}, register={"success": True, "node-id": "77"})
    assert fairbloom("deploy", "enroll", "b", "--examples", "300") == 0
    assert fairbloom("deploy", "enroll", "a", "--examples", "1200") == 0
    assert fairbloom("deploy", "enroll", "unknown") == 0
    assert fairbloom("deploy", "enroll", "gone", "--examples", "7") == 0
    assert fairbloom("deploy", "revoke", "gone") == 0
    assert fairbloom("deploy", "submit", "--detach") == 0
    assert machine.asked[-1][4] == 'enrolled-sizes="a=1200 b=300"'
    assert fairbloom("deploy", "submit", "--detach", "--set", "enrolled-sizes=a=5") == 0
    assert machine.asked[-1][4] == 'enrolled-sizes="a=5"'


def test_sizes_do_not_go_into_an_app_of_somebody_else(made: Path, machine: Machine, tmp_path: Path) -> None:
    machine.answers(run={"success": True, "run-id": "9"}, register={"success": True, "node-id": "77"})
    app = '[project]\nname = "mine"\n[tool.flwr.app]\npublisher = "me"\n'
    (tmp_path / "pyproject.toml").write_text(app)
    assert fairbloom("deploy", "enroll", "a", "--examples", "1200") == 0
    assert fairbloom("deploy", "submit", "--detach", "--app", tmp_path, "--set", "state-dir=x") == 0
    assert machine.asked[-1][4] == 'state-dir="x"'


def test_a_run_that_nobody_starts_is_said_once_and_waited_for(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "WAITING_SECONDS", 0.2)
    waiting = {"success": True, "runs": [{"run-id": "9", "status": "pending"}]}
    done = {"success": True, "runs": [{"run-id": "9", "status": "finished:completed"}]}
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "", "seconds": 1.5}, list=[waiting, done])
    assert fairbloom("deploy", "submit") == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "run 9 has been waiting for 0 s: nobody is there to run the server's side; is fairbloom server up on the "
        "server? (fairbloom deploy doctor)"
    ]


@pytest.mark.parametrize(
    ("mine", "other", "alone"),
    [
        ("pending", "finished:failed", True),
        ("pending", "pending", True),
        ("pending", "running", False),
        ("pending", "starting", False),
        ("starting", "pending", None),
        ("running", "running", None),
        ("finished:completed", "pending", None),
    ],
)
def test_a_run_waits_alone_while_no_other_goes_on(mine: str, other: str, alone: bool | None) -> None:
    listed = [{"run-id": "9", "status": mine}, {"run-id": "8", "status": other}]
    assert runs.waits_alone(listed, "9") is alone


UNAVAILABLE = {"success": False, "error-message": "Connection to the SuperLink is unavailable. Please check"}


def test_a_superlink_that_is_down_is_one_line_until_it_is_back(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "AGAIN_SECONDS", 0.01)
    # after it is back the run is begun anew: pending, then running
    answers = [UNAVAILABLE] * 3 + [listed("pending"), listed("running"), UNAVAILABLE, listed("finished:completed")]
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "round 1\n"}, list=answers)
    assert fairbloom("deploy", "submit") == 0
    printed = capsys.readouterr()
    assert printed.out.count("round 1") == 1
    away, back, away_again, back_again = printed.err.splitlines()
    assert away == away_again
    assert away.startswith("lost sight of run 9: the SuperLink's control API at 127.0.0.1:8000 cannot be reached: ")
    assert (back, back_again) == ("run 9 is back in sight: pending", "run 9 is back in sight: finished:completed")


def test_a_credential_that_is_no_longer_accepted_ends_the_watch(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {"success": False, "error-message": "Authentication failed. Please run `flwr login` to authenticate"}
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": ""}, list=refused)
    assert fairbloom("deploy", "submit") == 2
    message = "the control API at 127.0.0.1:8000 does not accept the credential in federation/operator.token"
    assert message in capsys.readouterr().err


def test_stop_stops_what_has_not_ended(made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    going = [{"run-id": "9", "status": "running"}, {"run-id": "8", "status": "finished:completed"}]
    machine.answers(list={"success": True, "runs": going}, stop={"success": True})
    capsys.readouterr()
    assert fairbloom("deploy", "stop") == 0
    assert capsys.readouterr().out == "run 9 is stopped\n"
    assert [words[:2] for words in machine.asked] == [["list", "federation"], ["stop", "9"]]
    machine.answers(list={"success": True, "runs": going[1:]}, stop={"success": False, "error-message": "has ended"})
    assert fairbloom("deploy", "stop") == 0
    assert fairbloom("deploy", "stop", "8") == 2
    printed = capsys.readouterr()
    assert printed.out == "no run is going on\n"
    assert "flwr stop 8: has ended" in printed.err
    assert [(line["event"], line["run-id"]) for line in noted(made)] == [("stop", "9"), ("refused", "8")]


def test_an_impossible_setting_is_named_before_anything_is_sent(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "submit", "--set", "fraction=2") == 2
    assert "fraction" in capsys.readouterr().err
    assert fairbloom("deploy", "submit", "--set", "fedfv.alpha=0.2") == 2
    assert "fedfv.alpha has no effect with method = 'fedavg'" in capsys.readouterr().err
    assert not (machine.folder / "asked.jsonl").exists()


def test_a_folder_without_an_app_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="holds no Flower app"):
        app_folder(tmp_path)
    assert app_folder(None)[1]

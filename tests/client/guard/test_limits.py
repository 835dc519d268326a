"""What the owner of a device allows, no run passes; and the log says what was asked and sent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict

from fairbloom.client.guard import audit_log
from fairbloom.client.guard.accepted_settings import SettingRefusedError
from fairbloom.client.guard.limits import Limits, LimitsError
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet.enrolment import enroll
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.server.settings import Settings
from tests.experiments.helpers import fairbloom

from ..hospital import Device, write_hospital

OWNER = {
    "tasks": ["csv"],
    "settings": {"seed": [0, 1], "test-share": 0.2, "method": "fedavg", "csv": {"kind": "auto"}},
}

PASSED: dict[str, Any] = {
    "task": "digits",
    "method": "afl",
    "seed": 7,
    "test-share": 0.99,
    "csv.kind": "regression",
}


def run(**settings: Any) -> dict[str, Any]:
    return Settings.of({"task": "csv", **settings}).run_config()


def test_a_run_that_passes_a_limit_is_refused_by_name(subtests: pytest.Subtests) -> None:
    limits = Limits.of(OWNER)
    limits.check(run(seed=1))
    limits.check({"task": "csv"})  # what a run leaves out has its default
    for key, value in PASSED.items():
        with subtests.test(key=key, value=value):
            with pytest.raises(SettingRefusedError, match=re.escape(f"{key} = {value!r}")):
                limits.check(run(**{key: value}))


def test_limits_that_make_no_sense_are_refused_with_their_key(
    bundle: Path, subtests: pytest.Subtests
) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"row": 5}, "row = 5"), ({"rows": 0}, "rows = 0"), ({"rows": "20"}, "rows = '20'")),
        *(
            ({"rows": True}, "rows = True"),
            ({"tasks": "csv"}, "tasks = 'csv'"),
            ({"schema": "all"}, "schema = 'all'"),
        ),
        *(({"round-seconds": -1}, "round-seconds = -1"), ({"settings": 3}, "settings = 3")),
        *(({"settings": {"test-shar": 0.2}}, "test-shar"), ({"settings": {"csv": 1}}, "csv")),
    ]
    for table, words in wrong:
        with subtests.test(table=table, words=words):
            with pytest.raises(LimitsError, match=words):
                Limits.of(table)
            with pytest.raises(DeployError, match=words):
                ClientSettings.of({"limits": table}, bundle / "client.toml")


def test_limits_reach_the_worker(bundle: Path) -> None:
    given = {"limits": {"rows": 30, "tasks": ["csv"]}}
    reached = json.loads(ClientSettings.of(given, bundle / "client.toml").worker(3)[-1])
    assert reached["limits"] == {"rows": 30, "tasks": ["csv"]}
    assert reached["node"]["limit-rows"] == 30
    own = {"app": "json:loads", "node-config": {"limit-rows": 1}}
    with pytest.raises(DeployError, match="write rows into the table limits"):
        ClientSettings.of({**given, **own}, bundle / "client.toml")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The bundle of a client."""
    return enroll(Federation.init(tmp_path / "made", ["localhost"], 1), "lund")


def test_the_log_is_read_run_by_run(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_hospital(bundle / "data")
    device = Device(bundle)
    device.ask("query", {}, RecordDict())
    device.evaluate()
    device.evaluate()
    assert fairbloom("client", "log", bundle / "client.toml") == 0
    said = capsys.readouterr().out
    assert said.startswith("run ")
    assert "task csv" in said
    assert "asked: evaluate; sent: metrics: num-examples, larger-class, loss, accuracy" in said
    assert fairbloom("client", "log", bundle / "state", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert fairbloom("client", "log", bundle) == 2
    assert "name the client's state-dir" in capsys.readouterr().err


def test_the_log_is_bounded_and_outlives_a_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_BYTES", 1000)
    for number in range(100):
        audit_log.note(tmp_path, {"run": number})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2200
    with (tmp_path / audit_log.RECORD).open("a") as file:
        file.write('{"run": 100')
    runs = [each["run"] for each in audit_log.read_entries(tmp_path)]
    assert runs == list(range(runs[0], 100))
    assert (tmp_path / audit_log.RECORD).stat().st_mode & 0o077 == 0

"""The operator's commands, with an answering machine in place of Flower's."""

import json
import stat
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploy import federation as module
from deploy.client import Client
from deploy.doctor import disk, expiry, open_keys
from deploy.federation import DeployError, Federation
from deploy.submit import app_folder
from tests.experiments.helpers import fairbloom

MACHINE = """#!{python} -SE
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
here = Path({folder!r})
with (here / "asked.jsonl").open("a") as asked:
    asked.write(json.dumps(words) + "\\n")
assert (Path(os.environ["FLWR_HOME"]) / "config.toml").exists()
answers = json.loads((here / "answers.json").read_text())
answer = answers.get(words[1] if words[0] == "supernode" else words[0], {{"success": True}})
if words[0] == "log":
    print(answer["text"], end="")
else:
    if isinstance(answer, list):
        (here / "answers.json").write_text(json.dumps(answers | {{words[0]: answer[1:] or answer}}))
        answer = answer[0]
    print("some words first", file=sys.stderr)
    print(json.dumps(answer))
"""


class Machine:
    """Answers as Flower's command does, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "flwr"
        self.path.write_text(MACHINE.format(python=sys.executable, folder=str(folder)))
        self.path.chmod(0o755)
        self.answers(register={"success": True, "node-id": "77"})

    def answers(self, **answers: Any) -> None:
        (self.folder / "answers.json").write_text(json.dumps(answers))

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked.jsonl").read_text().splitlines()]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "machine").mkdir()
    there = Machine(tmp_path / "machine")
    monkeypatch.setattr(module, "flwr_command", lambda: str(there.path))
    monkeypatch.setattr("deploy.submit.flwr_command", lambda: str(there.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return there


@pytest.fixture
def made(machine: Machine, tmp_path: Path) -> Path:
    assert fairbloom("deploy", "init", "federation", "--host", "fl.example.org", "--host", "10.0.0.7") == 0
    return tmp_path / "federation"


# Init ---------------------------------------------------------------------------------------------------------------


def test_init_makes_a_folder_that_only_its_owner_enters(made: Path) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "ca.key").stat().st_mode) == 0o600
    connection = tomllib.loads((made / "flower" / "config.toml").read_text())["superlink"]["federation"]
    assert connection == {"address": "127.0.0.1:8000", "root-certificates": str(made / "ca.crt")}
    assert Federation(made).superlink == "fl.example.org:9092"


def test_init_leaves_a_folder_that_is_in_use(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "ca.crt").read_bytes()
    assert fairbloom("deploy", "init", "federation", "--host", "other") == 2
    assert "federation is not empty: choose another folder" in capsys.readouterr().err
    assert (made / "ca.crt").read_bytes() == before


@pytest.mark.parametrize("host", ["fl.example.org:9092", "a b", "https://x"])
def test_a_host_that_is_none_is_named(machine: Machine, host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "init", "federation", "--host", host) == 2
    assert f"--host {host!r}: give a name or an address without port" in capsys.readouterr().err
    assert not Path("federation").exists()


def test_renew_keeps_the_authority_and_the_names(made: Path) -> None:
    authority, old = (made / "ca.crt").read_bytes(), (made / "server.crt").read_bytes()
    assert fairbloom("deploy", "renew", "--days", "5") == 0
    assert (made / "ca.crt").read_bytes() == authority
    assert (made / "server.crt").read_bytes() != old
    assert expiry("server certificate", made / "server.crt").words == "server.crt holds for 5 more days"


def test_a_folder_that_is_none_is_named(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "status", "--dir", "nowhere") == 2
    assert "nowhere is no federation's folder: make one with fairbloom deploy init nowhere" in capsys.readouterr().err


# Clients ------------------------------------------------------------------------------------------------------------


def test_enroll_registers_the_public_key_and_packs_the_private_one(
    made: Path, machine: Machine, tmp_path: Path
) -> None:
    assert fairbloom("deploy", "enroll", "site-1", "site-2") == 0
    assert machine.asked[0][:2] == ["supernode", "register"]
    assert machine.asked[0][3:] == ["federation", "--name", "site-1", "--format", "json"]
    bundle = made / "bundles" / "site-2.tar.gz"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with tarfile.open(bundle) as packed:
        assert packed.getmember("site-2/key").mode == 0o600
        packed.extractall(tmp_path, filter="data")
    client = Client.of({}, tmp_path / "site-2" / "client.toml")
    assert (client.superlink, client.name, client.partition_id) == ("fl.example.org:9092", "site-2", 1)
    assert (tmp_path / "site-2" / "fairbloom-client.service").read_text().startswith("[Unit]")
    private = (tmp_path / "site-2" / "key").read_text()
    kept = "".join(path.read_text() for path in (made / "clients").iterdir())
    assert "PRIVATE" in private
    assert "PRIVATE" not in kept


def test_an_unpacked_bundle_is_used_as_it_lies(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "site-1", "--unpacked") == 0
    assert Client.of({}, made / "bundles" / "site-1" / "client.toml").key == str(made / "bundles" / "site-1" / "key")
    assert stat.S_IMODE((made / "bundles" / "site-1" / "key").stat().st_mode) == 0o600


def test_the_partition_of_a_revoked_client_is_free_again(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "b") == 0
    assert [(client.name, client.partition_id) for client in Federation(made).clients] == [("a", 0), ("b", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enroll", "a/b"), "client 'a/b': up to 63 letters"),
        (("enroll", "there"), "client 'there' is enrolled already: revoke it first"),
        (("enroll", "x", "y", "--partition-id", "3"), "--partition-id 3 is for one client, and 2 are named"),
        (("revoke", "x"), "client 'x' is not enrolled; enrolled are: there"),
    ],
)
def test_what_cannot_be_is_named(
    made: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "there") == 0
    assert fairbloom("deploy", *words) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_left_where_the_superlink_does_not_register(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.answers(register={"success": False, "error-message": "Connection to the SuperLink is unavailable."})
    assert fairbloom("deploy", "enroll", "site-1") == 2
    assert "the SuperLink's control API at 127.0.0.1:8000 cannot be reached: start it" in capsys.readouterr().err
    assert not list((made / "clients").iterdir()) + list((made / "bundles").iterdir())


def test_revoke_unregisters_the_node(made: Path, machine: Machine) -> None:
    fairbloom("deploy", "enroll", "site-1")
    assert fairbloom("deploy", "revoke", "site-1") == 0
    assert machine.asked[-1] == ["supernode", "unregister", "77", "federation", "--format", "json"]
    assert Federation(made).clients[0].revoked


def test_status_goes_by_the_names_that_were_enrolled(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    fairbloom("deploy", "enroll", "site-1")
    nodes = [
        {"node-id": "77", "status": "online", "offline-at": "N/A"},
        {"node-id": "5", "status": "offline", "offline-at": "2026-01-01 00:00:00Z"},
        {"node-id": "6", "status": "unregistered", "offline-at": "N/A"},
    ]
    run = {"run-id": "1", "status": "running", "elapsed": 3.0, "fab-id": "fairbloom/fairbloom"}
    machine.answers(list={"success": True, "nodes": nodes, "runs": [run]})
    capsys.readouterr()
    assert fairbloom("deploy", "status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "clients": [
            {"client": "site-1", "partition-id": 0, "status": "online", "last-seen": "now"},
            {
                "client": "node 5, not enrolled here",
                "partition-id": None,
                "status": "offline",
                "last-seen": "2026-01-01 00:00:00Z",
            },
        ],
        "runs": [run],
    }
    assert fairbloom("deploy", "status") == 0
    assert "site-1" in capsys.readouterr().out


# Runs ---------------------------------------------------------------------------------------------------------------


def listed(status: str) -> dict[str, Any]:
    return {"success": True, "runs": [{"status": status}]}


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("stopped", 1)])
def test_submit_streams_the_log_once_and_tells_the_truth(
    made: Path, machine: Machine, status: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = [listed("running"), listed(f"finished:{status}")]
    machine.answers(run={"success": True, "run-id": "9"}, log={"text": "round 1\nround 2\n"}, list=lists)
    capsys.readouterr()
    assert fairbloom("deploy", "submit", "--set", "method=fedfv", "--set", "num-rounds=2") == code
    assert capsys.readouterr().out == f"run 9\nround 1\nround 2\nrun 9: finished:{status}\n"
    submitted = machine.asked[0]
    assert submitted[0] == "run"
    assert submitted[4] == 'method="fedfv" num-rounds=2'


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


# Doctor -------------------------------------------------------------------------------------------------------------


def test_doctor_names_faults_and_exits_with_1(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fairbloom("deploy", "renew", "--days", "-3")
    (made / "ca.key").chmod(0o644)
    capsys.readouterr()
    assert fairbloom("deploy", "doctor") == 1
    printed = capsys.readouterr().out
    assert "fault server certificate: " in printed
    assert "expired 3 days ago: fairbloom deploy renew" in printed
    assert f"others can read {made.relative_to(Path.cwd()) / 'ca.key'}: chmod 600" in printed
    assert "fault control API: 127.0.0.1:8000 cannot be used" in printed


def test_doctor_warns_of_what_ends_soon(made: Path) -> None:
    fairbloom("deploy", "renew", "--days", "20")
    assert expiry("x", made / "server.crt").verdict == "warning"
    assert expiry("x", made / "none.crt").verdict == "fault"
    assert open_keys(Federation(made)).verdict == "ok"
    assert disk(made / "not" / "yet").what == "disk"

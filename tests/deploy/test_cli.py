"""The operator's commands, with an answering machine in place of Flower's."""

import base64
import hashlib
import http.server
import json
import os
import re
import ssl
import stat
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore

from fairbloom.deploy import audit, pki
from fairbloom.deploy import federation as module
from fairbloom.deploy import submit as runs
from fairbloom.deploy.client import Client, free_port
from fairbloom.deploy.doctor import Finding, client_keys, device_key, disk, examine, expiry, open_secrets, server_side
from fairbloom.deploy.errors import DeployError, RefusedError
from fairbloom.deploy.federation import Federation
from fairbloom.deploy.roll import Key
from fairbloom.deploy.submit import app_folder
from tests.experiments.helpers import ROOT, fairbloom

VERSION = version("fairbloom")

MACHINE = """#!{python} -SE
import json, os, sys, time
from pathlib import Path
words = sys.argv[1:]
here = Path({folder!r})
with (here / "asked.jsonl").open("a") as asked:
    asked.write(json.dumps(words) + "\\n")
home = Path(os.environ["FLWR_HOME"])
assert (home / "config.toml").exists()
assert (home / "credentials.yaml").exists()
answers = json.loads((here / "answers.json").read_text())
asked_for = words[1] if words[0] == "supernode" else words[0]
answer = answers.get(asked_for, {{"success": True}})
if words[:2] == ["supernode", "register"]:
    (here / "registered.pub").write_bytes(Path(words[2]).read_bytes())
if words[0] == "log":
    print(answer["text"], end="", flush=True)
    time.sleep(answer.get("seconds", 0))
else:
    if isinstance(answer, list):
        (here / "answers.json").write_text(json.dumps(answers | {{asked_for: answer[1:] or answer}}))
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
        file = self.folder / "asked.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "machine").mkdir()
    there = Machine(tmp_path / "machine")
    monkeypatch.setattr(module, "flwr_command", lambda: str(there.path))
    monkeypatch.setattr("fairbloom.deploy.submit.flwr_command", lambda: str(there.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return there


@pytest.fixture
def made(machine: Machine, tmp_path: Path) -> Path:
    assert fairbloom("deploy", "init", "federation", "--host", "fl.example.org", "--host", "10.0.0.7") == 0
    return tmp_path / "federation"


def noted(made: Path) -> list[dict[str, Any]]:
    """Return what the audit log says after init, without times and chains."""
    lines = [json.loads(line) for line in audit.text(made / "state").splitlines()]
    return [{key: value for key, value in line.items() if key not in ("time", "account", "chain")} for line in lines][
        1:
    ]


def keys(made: Path) -> list[Key]:
    return Federation(made).keys()


def request_of(folder: Path, name: str, pair: pki.KeyPair | None = None) -> Path:
    """Write what a device asks with; return the file."""
    file = folder / f"{name}.request"
    file.write_text(f"{(pair or pki.new_node_key()).public.decode()} {name}\n")
    return file


# Init ---------------------------------------------------------------------------------------------------------------


def test_init_makes_a_folder_that_only_its_owner_enters(made: Path) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "state").stat().st_mode) == 0o700
    secret = ("ca.key", "server.key", "operator.token", "operators.toml", "runtime.secret", "metrics.token")
    for name in (*secret, "flower/credentials.yaml", "state/audit.jsonl"):
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600, name
    connection = tomllib.loads((made / "flower" / "config.toml").read_text())["superlink"]["federation"]
    assert connection == {"address": "127.0.0.1:8000", "root-certificates": str(made / "ca.crt")}
    federation = Federation(made)
    assert (federation.superlink, federation.listen) == ("fl.example.org:9092", "0.0.0.0:9092")
    assert open_secrets(federation).verdict == "ok"


def test_the_server_knows_the_operators_credential_by_its_hash_alone(made: Path) -> None:
    federation = Federation(made)
    known = tomllib.loads(federation.operators.read_text())
    assert known == {"operator": {"sha256": hashlib.sha256(federation.token().encode()).hexdigest()}}
    assert len(federation.runtime_secret.read_bytes()) == 32
    assert federation.token() not in federation.operators.read_text()
    assert len({federation.token(), federation.metrics_token.read_text()}) == 2


def test_flowers_own_commands_find_the_credential(made: Path) -> None:
    federation = Federation(made)
    with federation.environment() as environment:
        for home in (Path(environment["FLWR_HOME"]), made / "flower"):
            store = FileCredentialStore(home / "credentials.yaml")
            assert store.get(AUTHN_TYPE_STORE_KEY % "127.0.0.1:8000") == b"oidc"
            assert store.get(ACCESS_TOKEN_STORE_KEY % "127.0.0.1:8000") == federation.token().encode()
            assert store.get(REFRESH_TOKEN_STORE_KEY % "127.0.0.1:8000")
            assert stat.S_IMODE((home / "credentials.yaml").stat().st_mode) == 0o600
            assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert not Path(environment["FLWR_HOME"]).exists()


def test_init_says_how_to_start_the_server(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "init", "our federation", "--host", "a.org", "--listen", "10.0.0.7") == 0
    assert "  fairbloom server --dir 'our federation'\n" in capsys.readouterr().out
    assert Federation(Path("our federation")).listen == "10.0.0.7:9092"


def test_init_leaves_a_folder_that_is_in_use(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "ca.crt").read_bytes()
    assert fairbloom("deploy", "init", "federation", "--host", "other") == 2
    assert "federation is not empty: choose another folder" in capsys.readouterr().err
    assert (made / "ca.crt").read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_init_leaves_a_folder_of_another_account(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    Path("federation").mkdir()
    os.chown("federation", 12345, 12345)
    assert fairbloom("deploy", "init", "federation", "--host", "a.org") == 2
    assert "federation belongs to another account" in capsys.readouterr().err
    assert not list(Path("federation").iterdir())


@pytest.mark.parametrize("host", ["fl.example.org:9092", "a b", "https://x"])
def test_a_host_that_is_none_is_named(machine: Machine, host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "init", "federation", "--host", host) == 2
    assert f"--host {host!r}: give a name or an address without port" in capsys.readouterr().err
    assert not Path("federation").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fleet-port", "70000"), "--fleet-port 70000: a port is a number from 1 to 65535"),
        (("--fleet-port", "0"), "--fleet-port 0: a port"),
        (("--control", "127.0.0.1"), "--control '127.0.0.1': write it as HOST:PORT"),
        (("--control", "127.0.0.1:"), "write it as HOST:PORT"),
        (("--control", "127.0.0.1:x"), "write it as HOST:PORT"),
        (("--control", "127.0.0.1:70000"), "--control 70000: a port"),
        (("--control", "a b:8000"), "--control 'a b': give a name or an address"),
        (("--control", "0.0.0.0:8000"), "--control 0.0.0.0:8000: name the one address by which you reach it"),
        (("--control", "127.0.0.1:9092"), "--control 127.0.0.1:9092: port 9092 is the --fleet-port already"),
        (("--listen", "10.0.0.7", "--control", "10.0.0.7:9092"), "port 9092 is the --fleet-port already"),
        (("--listen", "10.0.0.7:9092"), "--listen '10.0.0.7:9092': give a name or an address"),
        (("--days", "0"), "--days 0: it must be more than 0, and at most 3650"),
        (("--days", "-1"), "--days -1: it must be more than 0"),
        (("--days", "nan"), "--days nan: it must be more than 0"),
        (("--days", "1e9"), "--days 1e+09: it must be more than 0, and at most 3650"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_init_refuses_what_is_impossible_before_anything_is_written(
    machine: Machine, words: tuple[str, ...], message: str, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if there:
        Path("federation").mkdir()
    assert fairbloom("deploy", "init", "federation", "--host", "a.org", *words) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["federation"] * there + ["machine"]
    assert not there or not list(Path("federation").iterdir())


def test_ports_may_be_equal_on_different_addresses(machine: Machine) -> None:
    words = ("--listen", "10.0.0.7", "--control", "127.0.0.1:9092")
    assert fairbloom("deploy", "init", "federation", "--host", "a.org", *words) == 0


def test_an_international_host_is_dialled_and_certified_in_its_ascii_form(machine: Machine) -> None:
    assert fairbloom("deploy", "init", "federation", "--host", "bücher.example") == 0
    assert Federation(Path("federation")).superlink == "xn--bcher-kva.example:9092"
    assert pki.hosts_of(Path("federation/server.crt")) == ["xn--bcher-kva.example", "127.0.0.1", "localhost", "::1"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("missing", ["authority", "server_certificate"])
def test_an_init_that_fails_leaves_nothing(
    machine: Machine, there: bool, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if there:
        Path("federation").mkdir()
    before = sorted(Path().iterdir())

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pki, f"make_{missing}", full)
        assert fairbloom("deploy", "init", "federation", "--host", "a.org") == 2
    assert "federation cannot be made: [Errno 28] No space left" in capsys.readouterr().err
    assert sorted(Path().iterdir()) == before
    assert not there or not list(Path("federation").iterdir())
    assert fairbloom("deploy", "init", "federation", "--host", "a.org") == 0


def test_init_fills_a_folder_that_is_there_as_a_volumes_root_is(machine: Machine) -> None:
    Path("federation").mkdir(mode=0o755)
    inode = Path("federation").stat().st_ino
    assert fairbloom("deploy", "init", "federation", "--host", "a.org") == 0
    assert Path("federation").stat().st_ino == inode
    assert stat.S_IMODE(Path("federation").stat().st_mode) == 0o700


@pytest.mark.parametrize("there", [True, False])
def test_of_two_inits_at_once_one_makes_the_folder_and_the_other_leaves_it(machine: Machine, there: bool) -> None:
    if there:
        Path("federation").mkdir()

    def make(host: str) -> str:
        try:
            Federation.init(Path("federation"), [host], 9092, "127.0.0.1:8000", 100)
        except DeployError as error:
            return str(error)
        return host

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(make, ["a.org", "b.org"]))
    (host,) = {"a.org", "b.org"} & set(done)
    assert Federation(Path("federation")).superlink == f"{host}:9092"
    Federation(Path("federation")).renew([], 100)  # authority and key belong together
    assert audit.broken(Path("federation/state")) is None
    assert sorted(path.name for path in Path().iterdir()) == ["federation", "machine"]


def test_renew_keeps_the_authority_and_the_names(made: Path) -> None:
    authority, old = (made / "ca.crt").read_bytes(), (made / "server.crt").read_bytes()
    assert fairbloom("deploy", "renew", "--days", "5") == 0
    assert (made / "ca.crt").read_bytes() == authority
    assert (made / "server.crt").read_bytes() != old
    assert expiry("server certificate", made / "server.crt").words.startswith("server.crt holds for 5 more days: ")


def test_the_control_apis_host_is_in_the_certificate(machine: Machine) -> None:
    assert fairbloom("deploy", "init", "federation", "--host", "a.org", "--control", "control:8000") == 0
    assert fairbloom("deploy", "renew", "--host", "b.org") == 0
    assert pki.hosts_of(Path("federation/server.crt")) == ["b.org", "control", *pki.LOCAL]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--host", "a b"), "--host 'a b': give a name or an address"),
        (("--days", "-1"), "--days -1: it must be more than 0"),
    ],
)
def test_renew_refuses_what_init_refuses(
    made: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (made / "server.crt").read_bytes()
    assert fairbloom("deploy", "renew", *words) == 2
    assert message in capsys.readouterr().err
    assert (made / "server.crt").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content", "words", "message"),
    [
        ("ca.key", None, (), "the authority's key federation/ca.key cannot be read: No such file or directory"),
        ("ca.key", b"random", (), "the authority's key federation/ca.key is no private key, or a damaged one"),
        ("ca.crt", b"random", (), "federation/ca.crt is no certificate, or a damaged one"),
        ("server.crt", b"random", (), "say for which hosts the new one is, by --host"),
    ],
)
def test_renew_names_the_file_that_it_cannot_use(
    made: Path,
    file: str,
    content: bytes | None,
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is None:
        (made / file).unlink()
    else:
        (made / file).write_bytes(content)
    assert fairbloom("deploy", "renew", *words) == 2
    assert message in capsys.readouterr().err


def test_renew_makes_credentials_that_are_missing_and_leaves_the_others(made: Path) -> None:
    federation = Federation(made)
    old, secret = federation.token(), federation.runtime_secret.read_bytes()
    federation.operator_token.unlink()
    federation.metrics_token.unlink()
    assert fairbloom("deploy", "renew") == 0
    known = tomllib.loads(federation.operators.read_text())["operator"]["sha256"]
    assert known == hashlib.sha256(federation.token().encode()).hexdigest()
    assert federation.token() != old
    assert federation.runtime_secret.read_bytes() == secret
    stored = (made / "flower" / "credentials.yaml").read_text()
    assert base64.b64encode(federation.token().encode()).decode() in stored


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("federation.toml", b"\xff\x00", "federation.toml cannot be read"),
        ("federation.toml", b"control = 'a:1'", "federation.toml lacks superlink: bring it back from a copy"),
        ("operator.token", None, "the credential federation/operator.token cannot be read"),
        ("operator.token", b"\xff", "the credential federation/operator.token cannot be read"),
        ("operator.token", b" \n", "federation/operator.token holds no credential: bring it back from a copy"),
        ("clients/x.toml", b"name = ", "clients/x.toml cannot be used"),
        ("clients/x.toml", b"name = 'x'", "clients/x.toml cannot be used"),
        ("clients/x.toml", b"\xff", "clients/x.toml cannot be used"),
        ("clients/x.toml", b"unknown = 1", "clients/x.toml cannot be used"),
        ("clients/x.toml", b"former = [1]", "clients/x.toml cannot be used"),
    ],
)
def test_a_damaged_file_is_named_with_the_remedy(
    made: Path, file: str, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        (made / file).unlink()
    else:
        (made / file).write_bytes(content)
    assert fairbloom("deploy", "status") == 2
    assert message in capsys.readouterr().err


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
        (("enroll", "There"), "client 'There' differs from client 'there', which is enrolled, in case alone"),
        (("enroll", "x", "y", "--partition-id", "3"), "--partition-id 3 is for one client, and 2 are named"),
        (("enroll", "x", "y", "--request", "f"), "--request f is for one client, and 2 are named"),
        (("enroll", "x", "--request", "f"), "--request f cannot be read: "),
        (("enroll", "x", "--partition-id", "-1"), "--partition-id -1: it is counted from 0"),
        (("enroll", "x", "--examples", "-1"), "--examples -1: it is counted from 0"),
        (("enroll", "x", "--days", "-1"), "--days -1: it must be 0 or more, and at most"),
        (("enroll", "x", "--days", "nan"), "--days nan: it must be"),
        (("rotate", "x"), "client 'x' is not enrolled; enrolled are: there"),
        (("rotate", "there", "--overlap", "-1"), "--overlap -1: it must be"),
        (("export", "x"), "client 'x' is not enrolled; enrolled are: there"),
        (("revoke", "x"), "client 'x' is not enrolled; enrolled are: there"),
    ],
)
def test_what_cannot_be_is_named(
    made: Path, machine: Machine, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "there") == 0
    before, asked = (made / "clients" / "there.toml").read_bytes(), machine.asked
    assert fairbloom("deploy", *words) == 2
    assert message in capsys.readouterr().err
    assert machine.asked == asked
    assert [path.name for path in (made / "clients").iterdir()] == ["there.toml"]
    assert (made / "clients" / "there.toml").read_bytes() == before


# Keys that are made on the device -----------------------------------------------------------------------------------


def test_a_bundle_for_a_key_of_the_device_holds_nothing_secret(made: Path, machine: Machine, tmp_path: Path) -> None:
    pair = pki.new_node_key()
    request = request_of(tmp_path, "gate-7", pair)
    assert fairbloom("deploy", "enroll", "gate-7", "--request", request, "--examples", "1200") == 0
    assert (machine.folder / "registered.pub").read_bytes() == pair.public
    with tarfile.open(made / "bundles" / "gate-7.tar.gz") as packed:
        names = ["ca.crt", "client.toml", "fairbloom-client.service"]
        assert packed.getnames() == [f"gate-7/{name}" for name in names]
        settings = packed.extractfile("gate-7/client.toml")
        assert settings is not None
        assert tomllib.loads(settings.read().decode())["key"] == "key"
    (client,) = Federation(made).clients
    assert (client.public_key, client.examples) == (pair.public.decode(), 1200)
    assert datetime.fromisoformat(client.expires) - datetime.now(UTC) > timedelta(days=397.9)
    (line,) = noted(made)
    assert line["event"] == "enroll"
    assert (line["client"], line["node-id"], line["key"]) == ("gate-7", "77", pki.fingerprint(pair.public))
    assert (line["expires"], line["examples"]) == (client.expires, 1200)


def test_an_unpacked_bundle_for_a_key_of_the_device_has_no_key_of_before(made: Path, tmp_path: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "--unpacked") == 0
    assert fairbloom("deploy", "revoke", "a") == 0
    assert not (made / "bundles" / "a").exists()
    assert fairbloom("deploy", "enroll", "a", "--unpacked", "--request", request_of(tmp_path, "a")) == 0
    assert not (made / "bundles" / "a" / "key").exists()


def test_a_request_that_cannot_be_is_refused_and_noted(
    made: Path, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pki.new_node_key()
    asked = request_of(tmp_path, "a", pair)
    (tmp_path / "private").write_bytes(pair.private)
    assert fairbloom("deploy", "enroll", "b", "--request", asked) == 2
    assert "is of client 'a', not 'b'" in capsys.readouterr().err
    assert fairbloom("deploy", "enroll", "a", "--request", tmp_path / "private") == 2
    assert "which has travelled and must be replaced" in capsys.readouterr().err
    assert machine.asked == []
    assert [(line["event"], line["command"], line["client"]) for line in noted(made)] == [
        ("refused", "enroll", "b"),
        ("refused", "enroll", "a"),
    ]
    assert "has travelled" in noted(made)[1]["reason"]
    assert pair.private.decode().splitlines()[1] not in audit.text(made / "state")


@pytest.mark.parametrize("then", [(), ("revoke",), ("rotate",), ("revoke", "enroll"), ("rotate", "revoke", "enroll")])
def test_a_key_that_was_known_once_is_never_enrolled_again(
    made: Path, tmp_path: Path, then: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pki.new_node_key()
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a", pair)) == 0
    for command in then:
        assert fairbloom("deploy", command, "a") == 0
    assert fairbloom("deploy", "enroll", "b", "--request", request_of(tmp_path, "b", pair)) == 2
    assert "client 'a'" in capsys.readouterr().err


def test_a_key_may_be_good_for_ever(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "--days", "0") == 0
    (key,) = keys(made)
    assert (key.expires, key.expired(datetime.now(UTC) + timedelta(days=10**5))) == ("", False)


def test_a_name_is_taken_whatever_its_case_even_if_revoked(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "Gate") == 0
    assert fairbloom("deploy", "revoke", "Gate") == 0
    assert fairbloom("deploy", "enroll", "gate") == 2
    assert "differs from client 'Gate', which is revoked, in case alone" in capsys.readouterr().err
    assert fairbloom("deploy", "enroll", "Gate") == 0


def test_of_two_that_enrol_a_name_at_once_one_does_and_the_others_key_is_taken_back(
    made: Path, machine: Machine
) -> None:
    def enroll(name: str) -> str:
        try:
            Federation(made).enroll(name, None, unpack=False)
        except DeployError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(enroll, ["a", "a", "b", "c"]))
    assert sorted(words for words in said if words) == [
        "client 'a' is enrolled already: revoke it first, or choose another name"
    ]
    assert sorted(client.partition_id for client in Federation(made).clients) == [0, 1, 2]
    registered = [words[-3] for words in machine.asked if words[1] == "register"]
    unregistered = [words for words in machine.asked if words[1] == "unregister"]
    assert len(unregistered) == len(registered) - 3
    assert audit.broken(made / "state") is None


def test_a_key_whose_bundle_cannot_be_written_is_taken_back(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_packed", full)
        assert fairbloom("deploy", "enroll", "a") == 2
    assert "enroll: [Errno 28] No space left on device" in capsys.readouterr().err
    assert machine.asked[-1][:3] == ["supernode", "unregister", "77"]
    assert not Federation(made).clients
    assert noted(made)[-1]["event"] == "refused"


# Rotation -----------------------------------------------------------------------------------------------------------


def test_a_rotated_client_keeps_name_and_partition_and_both_keys_are_good(
    made: Path, machine: Machine, tmp_path: Path
) -> None:
    assert fairbloom("deploy", "enroll", "other", "a", "--examples", "5") == 0
    old = Federation(made).client("a")
    machine.answers(register={"success": True, "node-id": "78"})
    pair = pki.new_node_key()
    assert fairbloom("deploy", "rotate", "a", "--request", request_of(tmp_path, "a", pair)) == 0
    new = Federation(made).client("a")
    assert (new.partition_id, new.examples, new.enrolled) == (1, 5, old.enrolled)
    assert machine.asked[-1][3:6] == ["federation", "--name", "a"]
    assert [words[1] for words in machine.asked] == ["register"] * 3
    current, former = (key for key in keys(made) if key.client == "a")
    assert (current.node_id, current.public_key, current.current) == ("78", pair.public.decode(), True)
    assert (former.node_id, former.public_key, former.current) == ("77", old.public_key, False)
    now = datetime.now(UTC)
    assert not former.expired(now + timedelta(days=6.9))
    assert former.expired(now + timedelta(days=7.1))
    assert noted(made)[-1]["event"] == "rotate"
    assert (noted(made)[-1]["node-id"], noted(made)[-1]["old-node-id"]) == ("78", "77")


def test_an_old_key_is_not_good_for_longer_than_it_was(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "--days", "2") == 0
    expires = Federation(made).client("a").expires
    assert fairbloom("deploy", "rotate", "a", "--overlap", "7") == 0
    assert Federation(made).client("a").former[0].expires == expires


def test_without_overlap_the_old_key_is_unregistered_at_once(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    assert fairbloom("deploy", "rotate", "a", "--overlap", "0") == 0
    assert machine.asked[-1] == ["supernode", "unregister", "77", "federation", "--format", "json"]
    assert [key.node_id for key in keys(made)] == ["78"]
    assert Federation(made).client("a").former[0].unregistered


def test_a_later_command_unregisters_a_former_key_whose_time_is_over(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(
        register={"success": True, "node-id": "78"},
        unregister={"success": False, "error-message": "database is locked"},
        list={"success": True, "nodes": [{"node-id": "77", "status": "offline"}]},
    )
    assert fairbloom("deploy", "rotate", "a", "--overlap", "0") == 0
    said = capsys.readouterr().err
    assert "a former key of client a is not unregistered yet: flwr supernode unregister: database is locked" in said
    (former,) = (key for key in keys(made) if not key.current)
    assert former.expired(datetime.now(UTC) + timedelta(seconds=1))
    time.sleep(1.1)
    machine.answers(register={"success": True, "node-id": "79"})
    assert fairbloom("deploy", "enroll", "b") == 0
    assert [key.node_id for key in keys(made)] == ["78", "79"]
    assert ["supernode", "unregister", "77"] in [words[:3] for words in machine.asked]
    assert [line["event"] for line in noted(made)] == ["enroll", "rotate", "unregister", "enroll"]


def test_revoke_strikes_off_all_keys_of_a_client(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    assert fairbloom("deploy", "rotate", "a") == 0
    assert fairbloom("deploy", "revoke", "a") == 0
    assert [words[2] for words in machine.asked if words[1] == "unregister"] == ["78", "77"]
    assert keys(made) == []


def test_a_rotation_does_not_slip_through_a_revocation(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    federation = Federation(made)
    with ThreadPoolExecutor(2) as pool:
        rotated = pool.submit(federation.rotate, "a", False)
        revoked = pool.submit(federation.revoke, "a")
        revoked.result()
        rotated.exception()
    assert keys(made) == []
    registered = {"77"} | {"78" for words in machine.asked[1:] if words[1] == "register"}
    assert {words[2] for words in machine.asked if words[1] == "unregister"} == registered


def test_a_revocation_that_was_cut_off_is_completed_by_the_same_command(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    refused = {"success": False, "error-message": "[code: 24] Node 77 not found"}
    machine.answers(
        register={"success": True, "node-id": "77"},
        unregister=refused,
        list={"success": True, "nodes": [{"node-id": "77", "status": "unregistered"}]},
    )
    assert fairbloom("deploy", "revoke", "a") == 0
    assert fairbloom("deploy", "enroll", "b") == 0
    machine.answers(unregister=refused, list={"success": True, "nodes": []})
    assert fairbloom("deploy", "revoke", "b") == 2
    assert not Federation(made).client("b").revoked


def test_keys_are_read_while_their_files_are_being_replaced(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b") == 0
    federation, over = Federation(made), threading.Event()
    (one, two) = federation.clients

    def replace() -> None:
        while not over.is_set():
            federation._roll.save(one)
            federation._roll.file("b").unlink(missing_ok=True)
            federation._roll.save(two)

    replacing = threading.Thread(target=replace)
    replacing.start()
    seen = [[key.client for key in keys(made)] for _ in range(200)]
    over.set()
    replacing.join()
    assert all(names in (["a"], ["a", "b"]) for names in seen)


# Export -------------------------------------------------------------------------------------------------------------


def test_a_bundle_is_exported_to_a_file(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "--unpacked") == 0
    assert fairbloom("deploy", "enroll", "c", "--request", request_of(tmp_path, "c")) == 0
    capsys.readouterr()
    assert fairbloom("deploy", "export", "a", "--to", "a.tar.gz") == 0
    assert "a's bundle holds its private key: leave no copy on the way" in capsys.readouterr().err
    assert stat.S_IMODE(Path("a.tar.gz").stat().st_mode) == 0o600
    with tarfile.open("a.tar.gz") as packed:
        packed.extractall(tmp_path / "device", filter="data")
    assert Client.of({}, tmp_path / "device" / "a" / "client.toml").name == "a"
    assert stat.S_IMODE((tmp_path / "device" / "a" / "key").stat().st_mode) == 0o600
    assert fairbloom("deploy", "export", "c", "--to", "c.tar.gz") == 0
    assert capsys.readouterr().err == ""
    assert Path("c.tar.gz").read_bytes() == (made / "bundles" / "c.tar.gz").read_bytes()
    assert [line["client"] for line in noted(made) if line["event"] == "export"] == ["a", "c"]
    assert fairbloom("deploy", "export", "a", "--to", "nowhere/a.tar.gz") == 2
    assert "--to nowhere/a.tar.gz cannot be written: No such file" in capsys.readouterr().err


def test_a_bundle_is_exported_to_standard_output_byte_for_byte(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    command = [sys.executable, "-c", "from fairbloom.cli import main; main()", "deploy", "export", "a"]
    done = subprocess.run([*command, "--dir", made], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == (made / "bundles" / "a.tar.gz").read_bytes()


def test_a_bundle_that_is_gone_and_a_terminal_are_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True)
        assert fairbloom("deploy", "export", "a") == 2
    assert "name a file by --to a.tar.gz, or redirect" in capsys.readouterr().err
    (made / "bundles" / "a.tar.gz").unlink()
    assert fairbloom("deploy", "export", "a", "--to", "x") == 2
    assert "the bundle of client 'a' is gone from federation/bundles" in capsys.readouterr().err


# The SuperLink's answers --------------------------------------------------------------------------------------------


def test_nothing_is_left_where_the_superlink_does_not_register(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.answers(register={"success": False, "error-message": "Connection to the SuperLink is unavailable."})
    assert fairbloom("deploy", "enroll", "site-1") == 2
    assert (
        "the SuperLink's control API at 127.0.0.1:8000 cannot be reached: is fairbloom server up"
        in capsys.readouterr().err
    )
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
    expires = Federation(made).client("site-1").expires
    found = json.loads(capsys.readouterr().out)
    assert found["clients"] == [
        {"client": "site-1", "partition-id": 0, "status": "online", "last-seen": "now", "key-expires": expires},
        {
            "client": "node 5, not enrolled here",
            "partition-id": None,
            "status": "offline",
            "last-seen": "2026-01-01 00:00:00Z",
            "key-expires": "",
        },
    ]
    assert found["runs"] == [run]
    assert found["server"]["verdict"] == "fault"
    assert fairbloom("deploy", "status") == 0
    printed = capsys.readouterr().out
    assert "site-1" in printed
    assert "server: 127.0.0.1:8000 does not answer" in printed


def test_status_tells_a_device_that_still_goes_by_its_former_key(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    assert fairbloom("deploy", "rotate", "a") == 0
    nodes = [{"node-id": "77", "status": "online"}, {"node-id": "78", "status": "offline", "offline-at": "N/A"}]
    machine.answers(list={"success": True, "nodes": nodes, "runs": []})
    capsys.readouterr()
    assert fairbloom("deploy", "status", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["clients"]
    assert [(row["client"], row["status"]) for row in rows] == [
        ("a", "offline"),
        ("a, by its former key", "online"),
    ]


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


# The audit log ------------------------------------------------------------------------------------------------------


def test_every_command_that_changes_something_is_noted(made: Path, machine: Machine) -> None:
    for words in (("enroll", "a"), ("rotate", "a"), ("export", "a", "--to", "a.tar.gz"), ("revoke", "a"), ("renew",)):
        assert fairbloom("deploy", *words) == 0
    assert [line["event"] for line in noted(made)] == ["enroll", "rotate", "export", "revoke", "renew"]
    assert json.loads(audit.text(made / "state").splitlines()[0])["event"] == "init"
    assert audit.broken(made / "state") is None


def test_the_audit_log_is_shown_and_a_changed_line_is_exit_code_1(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    capsys.readouterr()
    assert fairbloom("deploy", "audit") == 0
    assert re.search(r"│ 2 .*│ enroll .*client a, node-id 77", capsys.readouterr().out)
    assert fairbloom("deploy", "audit", "--json") == 0
    printed = capsys.readouterr().out
    assert [json.loads(line)["event"] for line in printed.splitlines()] == ["init", "enroll"]
    log = made / "state" / "audit.jsonl"
    log.write_text(log.read_text().replace("10.0.0.7", "10.0.0.8"))
    assert fairbloom("deploy", "audit") == 1
    assert "line 1 of federation/state/audit.jsonl does not fit" in capsys.readouterr().err
    finding = next(finding for finding in examine(Federation(made)) if finding.what == "audit log")
    assert finding.verdict == "fault"


def test_a_log_that_cannot_be_written_stops_nobody_and_is_said(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "state" / "audit.jsonl").unlink()
    (made / "state").rmdir()
    assert fairbloom("deploy", "enroll", "a") == 0
    said = capsys.readouterr().err
    assert "federation/state/audit.jsonl cannot be written (No such file or directory): enroll is not noted" in said


# Doctor -------------------------------------------------------------------------------------------------------------


def test_doctor_names_faults_and_exits_with_1(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, server = (made / "ca.crt", made / "ca.key"), (made / "server.crt", made / "server.key")
    pki.make_server_certificate(*authority, *server, ["fl.example.org"], -3)
    (made / "ca.key").chmod(0o644)
    (made / "metrics.token").chmod(0o640)
    capsys.readouterr()
    assert fairbloom("deploy", "doctor") == 1
    printed = capsys.readouterr().out
    assert "fault server certificate: " in printed
    assert "expired 3 days ago: fairbloom deploy renew" in printed
    assert "others can read federation/ca.key, federation/metrics.token: chmod 600" in printed
    assert "fault control API: 127.0.0.1:8000 cannot be used" in printed
    assert "fault server: 127.0.0.1:8000 does not answer" in printed


def test_doctor_warns_of_what_ends_soon(made: Path) -> None:
    fairbloom("deploy", "renew", "--days", "20")
    assert expiry("x", made / "server.crt").verdict == "warning"
    assert expiry("x", made / "none.crt").verdict == "fault"
    assert disk(made / "not" / "yet").what == "disk"


@pytest.mark.parametrize(
    "name",
    [
        *("ca.key", "server.key", "operator.token", "operators.toml", "runtime.secret", "metrics.token"),
        *("flower/credentials.yaml", "state/audit.jsonl", "bundles/a.tar.gz", "bundles/b/key"),
    ],
)
def test_doctor_finds_each_secret_that_others_can_read(made: Path, name: str) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    assert fairbloom("deploy", "enroll", "b", "--unpacked") == 0
    assert open_secrets(Federation(made)).verdict == "ok"
    (made / name).chmod(0o604)
    found = open_secrets(Federation(made))
    assert found.verdict == "fault"
    assert found.words.endswith(f"chmod 600 {made / name}")


def test_doctor_finds_a_folder_that_others_can_enter(made: Path) -> None:
    made.chmod(0o755)
    assert open_secrets(Federation(made)).words == f"others can enter {made}: chmod 700 {made}"


@pytest.mark.parametrize("content", [b"random", b""])
def test_doctor_survives_a_damaged_authority(made: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "ca.crt").write_bytes(content)
    assert fairbloom("deploy", "doctor") == 1
    assert "ca.crt is no certificate, or a damaged one" in capsys.readouterr().out
    assert fairbloom("deploy", "enroll", "a", "--unpacked") == 0
    device = made / "bundles" / "a" / "client.toml"
    assert fairbloom("deploy", "doctor", "--client", device) == 2
    assert "ca.crt" in capsys.readouterr().err


def test_doctor_looks_into_a_devices_key(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "a", "--unpacked") == 0
    key = made / "bundles" / "a" / "key"
    assert device_key(key).verdict == "ok"
    key.chmod(0o644)
    assert device_key(key).words == f"others can read {key}: chmod 600 {key}"
    key.write_bytes(b"\x00random")
    assert "is no private key in OpenSSH format" in device_key(key).words
    assert fairbloom("deploy", "doctor", "--client", key.with_name("client.toml")) == 2
    assert "is no private key in OpenSSH format" in capsys.readouterr().err


@pytest.mark.parametrize(("days", "verdict"), [(31, "ok"), (0, "ok"), (29, "warning"), (0.00001, "fault")])
def test_doctor_and_status_see_client_keys_that_run_out(
    made: Path, machine: Machine, days: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "fine") == 0
    assert fairbloom("deploy", "enroll", "a", "--days", days) == 0
    time.sleep(1.1)
    found = client_keys(Federation(made))
    assert found.verdict == verdict
    assert ("a: fairbloom deploy rotate NAME" in found.words) == (verdict != "ok")
    machine.answers(list={"success": True, "nodes": [], "runs": []})
    capsys.readouterr()
    assert fairbloom("deploy", "status") == 0
    assert (f"client keys: {found.words}" in capsys.readouterr().out) == (verdict != "ok")


@pytest.mark.parametrize("content", ["", "operator = 3", "[operator]\nsha256 = 'other'", "[", "[operator]"])
def test_doctor_sees_a_credential_that_the_server_cannot_know(made: Path, content: str) -> None:
    def found() -> Finding:
        return next(finding for finding in examine(Federation(made)) if finding.what == "credential")

    assert found().verdict == "ok"
    (made / "operators.toml").write_text(content)
    assert found().verdict == "fault"
    assert "operators.toml" in found().words


# What the control API says of the server ----------------------------------------------------------------------------


class ControlApi(http.server.BaseHTTPRequestHandler):
    """Answers the server's page to whoever has the credential."""

    token, status, page = "", 200, b""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == f"Bearer {self.token}"
        self.answer(self.status if allowed else 401, self.page if allowed else b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def answer(self, status: int, page: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(page)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Federation, type[ControlApi]]]:
    federation = Federation.init(tmp_path / "served", ["localhost"], 9092, f"127.0.0.1:{free_port()}", 30)
    answering = type("Answering", (ControlApi,), {"token": federation.token()})
    address = ("127.0.0.1", int(federation.control.rpartition(":")[2]))
    with http.server.ThreadingHTTPServer(address, answering) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(federation.certificate, federation.certificate_key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield federation, answering
        server.shutdown()
        serving.join()


def page(**about: object) -> bytes:
    return json.dumps({"superexec_seen": 0.5, "database_bytes": 2_000_000, "version": VERSION} | about).encode()


@pytest.mark.parametrize(
    ("status", "answer", "verdict", "words"),
    [
        (200, page(), "ok", f"fairbloom {VERSION} is ready for runs; its database has 2 MB"),
        (200, page(superexec_seen=None), "fault", "for work since it was started, so runs will wait"),
        (200, page(superexec_seen=31), "fault", "for work for 31 s, so runs will wait"),
        (200, page(version="9.9"), "warning", f"fairbloom 9.9 runs there and {VERSION} is installed here"),
        (200, b"no json", "fault", "does not answer"),
        (200, b"[]", "fault", "does not answer"),
        (404, b"", "warning", "is a SuperLink that fairbloom server did not start"),
        (500, b"", "fault", "answers with 500: see the server's log"),
    ],
)
def test_what_the_server_says_of_itself_is_a_finding(
    served: tuple[Federation, type[ControlApi]], status: int, answer: bytes, verdict: str, words: str
) -> None:
    federation, api = served
    api.status, api.page = status, answer
    found = server_side(federation)
    assert found.verdict == verdict
    assert words in found.words


def test_a_credential_that_is_refused_is_a_finding_and_words_of_flowers_commands(
    served: tuple[Federation, type[ControlApi]],
) -> None:
    federation, api = served
    api.token = "another"
    assert server_side(federation).verdict == "fault"
    assert f"does not accept the credential in {federation.operator_token}" in server_side(federation).words
    with pytest.raises(RefusedError, match="does not accept the credential in"):
        federation.flwr_json("list", "federation")


def test_flowers_own_commands_send_the_credential(served: tuple[Federation, type[ControlApi]]) -> None:
    federation, _ = served
    assert federation.flwr_json("list", "federation")["runs"] == []  # an empty page is an empty list of runs

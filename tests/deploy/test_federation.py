"""A federation's folder: how it is made, renewed, and found damaged."""

import base64
import hashlib
import os
import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.flower.operator import commands as flower_commands
from fairbloom.deploy.operator.doctor import (
    check_expiry,
    check_secrets,
)
from fairbloom.deploy.operator.federation import Federation
from tests.experiments.helpers import fairbloom

from .commands import Machine

VERSION = version("fairbloom")


# Init ---------------------------------------------------------------------------------------------------------------


def test_init_makes_a_folder_that_only_its_owner_enters(made: Path) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "state").stat().st_mode) == 0o700
    secret = ("ca.key", "server.key", "operator.token", "operators.toml", "runtime.secret")
    for name in (*secret, "flower/credentials.yaml"):
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600, name
    connection = tomllib.loads((made / "flower" / "config.toml").read_text())["superlink"]["federation"]
    assert connection == {"address": "127.0.0.1:8000", "root-certificates": str(made / "ca.crt")}
    federation = Federation(made)
    assert (federation.superlink, federation.listen) == ("fl.example.org:9092", "0.0.0.0:9092")
    assert check_secrets(federation).verdict == "ok"


def test_the_server_knows_the_operators_credential_by_its_hash_alone(made: Path) -> None:
    federation = Federation(made)
    known = tomllib.loads(federation.operators.read_text())
    assert known == {"operator": {"sha256": hashlib.sha256(federation.read_token().encode()).hexdigest()}}
    assert len(federation.runtime_secret.read_bytes()) == 32
    assert federation.read_token() not in federation.operators.read_text()


def test_flowers_own_commands_find_the_credential(made: Path) -> None:
    federation = Federation(made)
    with flower_commands.environment(federation) as environment:
        for home in (Path(environment["FLWR_HOME"]), made / "flower"):
            store = FileCredentialStore(home / "credentials.yaml")
            assert store.get(AUTHN_TYPE_STORE_KEY % "127.0.0.1:8000") == b"oidc"
            assert store.get(ACCESS_TOKEN_STORE_KEY % "127.0.0.1:8000") == federation.read_token().encode()
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
    assert pki.read_hosts(Path("federation/server.crt")) == ["xn--bcher-kva.example", "127.0.0.1", "localhost", "::1"]


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
    assert sorted(path.name for path in Path().iterdir()) == ["federation", "machine"]


def test_renew_keeps_the_authority_and_the_names(made: Path) -> None:
    authority, old = (made / "ca.crt").read_bytes(), (made / "server.crt").read_bytes()
    assert fairbloom("deploy", "renew", "--days", "5") == 0
    assert (made / "ca.crt").read_bytes() == authority
    assert (made / "server.crt").read_bytes() != old
    assert check_expiry("server certificate", made / "server.crt").words.startswith(
        "server.crt holds for 5 more days: "
    )


def test_the_control_apis_host_is_in_the_certificate(machine: Machine) -> None:
    assert fairbloom("deploy", "init", "federation", "--host", "a.org", "--control", "control:8000") == 0
    assert fairbloom("deploy", "renew", "--host", "b.org") == 0
    assert pki.read_hosts(Path("federation/server.crt")) == ["b.org", "control", *pki.LOCAL]


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
        ("ca.key", b"random", (), "the authority's key federation/ca.key is not a private key, or a damaged one"),
        ("ca.crt", b"random", (), "federation/ca.crt is not a certificate, or a damaged one"),
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
    old, secret = federation.read_token(), federation.runtime_secret.read_bytes()
    federation.operator_token.unlink()
    assert fairbloom("deploy", "renew") == 0
    known = tomllib.loads(federation.operators.read_text())["operator"]["sha256"]
    assert known == hashlib.sha256(federation.read_token().encode()).hexdigest()
    assert federation.read_token() != old
    assert federation.runtime_secret.read_bytes() == secret
    stored = (made / "flower" / "credentials.yaml").read_text()
    assert base64.b64encode(federation.read_token().encode()).decode() in stored


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
    assert (
        "nowhere is not a federation's folder: make one with fairbloom deploy init nowhere" in capsys.readouterr().err
    )

"""The folder of a federation: created, renewed, and found damaged."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet.federation import Federation
from tests.experiments.helpers import captured, fairbloom


def init(*words: str) -> int:
    return fairbloom("deploy", "init", "federation", "--host", "a.org", *words)


def test_init_makes_a_folder_that_only_its_owner_enters(made: Path) -> None:
    modes = {
        **dict.fromkeys(("", "state", "clients", "bundles"), 0o700),
        **dict.fromkeys(("ca.key", "server.key"), 0o600),
    }
    assert {name: stat.S_IMODE((made / name).stat().st_mode) for name in modes} == modes
    federation = Federation.read(made)
    assert (federation.server, federation.listen) == ("fl.example.org:9092", "[::]:9092")
    assert pki.read_hosts(made / "server.crt") == ["fl.example.org", "10.0.0.7", *pki.LOCAL]
    assert (made / "fairbloom-server.service").read_text().startswith("[Unit]")


def test_init_says_how_to_start_the_server(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "  fairbloom server --dir 'our federation'\n"
        in captured(
            capsys, "deploy", "init", "our federation", "--host", "a.org", "--port", "9000"
        ).out
    )
    assert Federation.read(Path("our federation")).server == "a.org:9000"


def test_init_leaves_a_folder_that_is_in_use(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (made / "ca.crt").read_bytes()
    assert init() == 2
    assert "federation is not empty: choose another folder" in capsys.readouterr().err
    assert (made / "ca.crt").read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_init_leaves_a_folder_of_another_account(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("federation").mkdir()
    os.chown("federation", 12345, 12345)
    assert init() == 2
    assert "federation belongs to another account" in capsys.readouterr().err
    assert not list(Path("federation").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--port", "70000"), "--port 70000: a port is a number from 1 to 65535"),
        (("--port", "0"), "--port 0: a port"),
        (
            ("--host", "fl.example.org:9092"),
            "--host 'fl.example.org:9092': give a name or an address without port",
        ),
    ],
)
def test_init_refuses_invalid_names_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert init(*words) == 2, words
    assert message in capsys.readouterr().err
    assert not Path("federation").exists()


@pytest.mark.parametrize("missing", ["authority", "server_certificate"])
def test_an_init_that_fails_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    for there in (True, False):
        if there:
            Path("federation").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(pki, f"make_{missing}", full)
            assert init() == 2
        assert "federation cannot be made: [Errno 28] No space left" in capsys.readouterr().err
        assert [path.name for path in here.iterdir()] == ["federation"] * there
        if there:
            Path("federation").rmdir()  # the folder is empty
    assert init() == 0


def test_init_fills_an_existing_folder_such_as_a_volumes_root(here: Path) -> None:
    Path("federation").mkdir(mode=0o755)
    inode = Path("federation").stat().st_ino
    assert init() == 0
    assert Path("federation").stat().st_ino == inode
    assert stat.S_IMODE(Path("federation").stat().st_mode) == 0o700


def test_of_two_inits_at_once_one_makes_the_folder(here: Path) -> None:
    def make(host: str) -> str:
        try:
            Federation.init(Path("federation"), [host], 9092)
        except DeployError as error:
            return str(error)
        return host

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(make, ["a.org", "b.org"]))
    (host,) = {"a.org", "b.org"} & set(done)
    assert Federation.read(Path("federation")).server == f"{host}:9092"
    Federation.read(Path("federation")).renew()  # authority and key belong together
    assert [path.name for path in here.iterdir()] == ["federation"]


def test_renew_keeps_the_authority_and_the_names(made: Path) -> None:
    authority = (made / "ca.crt").read_bytes()
    old = (made / "server.crt").read_bytes()
    assert fairbloom("deploy", "renew") == 0
    assert (made / "ca.crt").read_bytes() == authority
    assert (made / "server.crt").read_bytes() != old
    assert pki.read_hosts(made / "server.crt") == ["fl.example.org", "10.0.0.7", *pki.LOCAL]
    assert fairbloom("deploy", "renew", "--host", "b.org") == 0
    assert pki.read_hosts(made / "server.crt") == ["b.org", *pki.LOCAL]


def test_renew_names_what_it_cannot_use(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "--host 'a b': give a name or an address"
        in captured(capsys, "deploy", "renew", "--host", "a b", code=2).err
    )
    (made / "server.crt").write_bytes(b"random")
    assert "by fairbloom deploy renew --host" in captured(capsys, "deploy", "renew", code=2).err
    (made / "ca.key").unlink()
    assert (
        "the authority's key federation/ca.key cannot be read: No such file"
        in captured(capsys, "deploy", "renew", "--host", "a.org", code=2).err
    )


def test_a_folder_without_a_federation_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "nowhere is not a federation's folder: make one with fairbloom deploy init nowhere"
        in captured(capsys, "deploy", "status", "--dir", "nowhere", code=2).err
    )

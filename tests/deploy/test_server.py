"""`fairbloom server`: what it checks before it starts, and how it keeps its processes running."""

import os
import socket
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.processes import split_address
from fairbloom.deploy.server import supervisor as server
from fairbloom.deploy.server.supervisor import (
    NEEDED,
    SECRETS,
    FederationServer,
    Readiness,
    check_files,
    check_port,
    is_newer,
    lock_folder,
    renew_if_due,
)
from tests.deploy.flower import PATIENCE, ROOT, wait_until
from tests.deploy.processes import free_port


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    monkeypatch.setattr(server, "PORT_SECONDS", 0.0)
    control = f"127.0.0.1:{free_port()}"
    return Federation.init(tmp_path / "fed", ["localhost"], free_port(), control, 10.0, listen="127.0.0.1")


# What is checked ----------------------------------------------------------------------------------------------------


def test_a_new_federations_folder_is_good(federation: Federation) -> None:
    check_files(federation)


def test_the_server_needs_neither_the_operators_credential_nor_the_authoritys_key(federation: Federation) -> None:
    federation.operator_token.unlink()
    federation.authority_key.unlink()
    check_files(federation)


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("fault", ["missing", "empty", "a folder"])
def test_a_file_that_is_missing_or_empty_is_named(federation: Federation, name: str, fault: str) -> None:
    file = federation.path / name
    file.unlink()
    if fault == "empty":
        file.touch(mode=0o600)
    elif fault == "a folder":
        file.mkdir()
    with pytest.raises(DeployError, match=f"{name} (cannot be read|is empty)"):
        check_files(federation)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("others", [0o640, 0o604, 0o620, 0o601])
def test_a_secret_that_others_can_reach_is_named(federation: Federation, name: str, others: int) -> None:
    (federation.path / name).chmod(others)
    with pytest.raises(DeployError, match=f"others on this machine can read .*{name}: chmod 600"):
        check_files(federation)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt"])
def test_a_damaged_certificate_is_named(federation: Federation, name: str) -> None:
    file = federation.path / name
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(pki.PkiError, match=f"{name} is not a certificate"):
        check_files(federation)


@pytest.mark.parametrize("damage", ["random", "another"])
def test_a_key_that_is_not_the_certificates_is_named(federation: Federation, tmp_path: Path, damage: str) -> None:
    content = os.urandom(200)
    if damage == "another":
        authority = (tmp_path / "ca.crt", tmp_path / "ca.key")
        pki.make_authority(*authority)
        pki.make_server_certificate(*authority, tmp_path / "a.crt", tmp_path / "a.key", ["localhost"], 10.0)
        content = (tmp_path / "a.key").read_bytes()
    federation.certificate_key.write_bytes(content)
    with pytest.raises(DeployError, match=r"server\.key is not the key of .*server\.crt .*fairbloom deploy renew"):
        check_files(federation)


def test_an_expired_certificate_is_named(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pki, "SKEW", pki.SKEW * 100)
    authority = (federation.authority, federation.authority_key)
    pki.make_server_certificate(*authority, federation.certificate, federation.certificate_key, ["localhost"], -3.0)
    with pytest.raises(DeployError, match=r"server\.crt expired 3 days ago: fairbloom deploy renew"):
        check_files(federation)


def make_certificate(federation: Federation, days: float, left: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the server a certificate of so many days, made in the past."""
    authority = (federation.authority, federation.authority_key)
    with monkeypatch.context() as patch:
        now = datetime.now(UTC) - timedelta(days=days - left)
        patch.setattr(pki, "datetime", SimpleNamespace(now=lambda zone: now))
        hosts = ["fl.example.org", "localhost"]
        pki.make_server_certificate(*authority, federation.certificate, federation.certificate_key, hosts, days)


@pytest.mark.parametrize(
    ("days", "left", "due"), [(398, 41, False), (398, 39, True), (398, -3, True), (9, 4, False), (9, 2, True)]
)
def test_the_server_renews_its_certificate_before_its_end(
    federation: Federation, days: float, left: float, due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(federation, days, left, monkeypatch)
    before = federation.certificate.read_bytes()
    assert renew_if_due(federation) == due
    assert (federation.certificate.read_bytes() != before) == due
    if due:
        assert round(pki.days_left(federation.certificate)) == days
        assert "fl.example.org" in pki.read_hosts(federation.certificate)
        check_files(federation)


def test_a_server_without_the_authoritys_key_renews_nothing(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificate(federation, 398, 3, monkeypatch)
    federation.authority_key.unlink()
    assert not renew_if_due(federation)
    assert 2 < pki.days_left(federation.certificate) < 3


def test_a_certificate_that_cannot_be_renewed_is_said(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificate(federation, 398, 3, monkeypatch)
    federation.authority_key.write_bytes(b"no key")
    assert not renew_if_due(federation)
    assert "server.crt is not renewed: the authority's key" in capsys.readouterr().err


def test_the_superlink_starts_again_with_a_renewed_certificate(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, ended = FederationServer(federation), list[str]()
    monkeypatch.setattr(serving._superlink, "end", lambda: ended.append("SuperLink"))
    make_certificate(federation, 398, 3, monkeypatch)
    for _ in range(3):
        assert not serving._renew_in_time()
    assert ended == ["SuperLink"]


@pytest.mark.slow
def test_clients_see_the_renewed_certificate_while_the_server_runs(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from fairbloom.deploy.server import supervisor as s; s.RENEWAL_LOOK_SECONDS = 1.0; s.main()"
    said = tmp_path / "said"
    with said.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-c", code, str(federation.path)], cwd=tmp_path, stderr=stderr)
    try:
        wait_until(lambda: "ready: " in said.read_text())
        place = split_address(federation.superlink)
        before = ssl.get_server_certificate(place)
        make_certificate(federation, 398, 3, monkeypatch)
        wait_until(lambda: "server.crt is renewed, for 398 days" in said.read_text())
        wait_until(lambda: shown(place) not in ("", before))
        assert shown(place) == federation.certificate.read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE)


def shown(place: tuple[str, int]) -> str:
    """Return the certificate that a port shows, "" while nobody answers."""
    try:
        return ssl.get_server_certificate(place)
    except OSError:
        return ""


def test_a_clients_file_that_cannot_be_used_is_named(federation: Federation) -> None:
    (federation.path / "clients" / "site-a.toml").write_text("= what")
    with pytest.raises(DeployError, match=r"site-a\.toml cannot be used"):
        check_files(federation)


@pytest.mark.parametrize("what", ["control", "listen"])
def test_a_port_that_is_taken_is_named_with_its_line(federation: Federation, what: str) -> None:
    address = getattr(federation, what)
    check_port(federation, what, address)
    words = f"{what} = {address} in .*toml: another program listens there"
    place = ("127.0.0.1", int(address.rpartition(":")[2]))
    with socket.create_server(place), pytest.raises(DeployError, match=words):
        check_port(federation, what, address)
    check_port(federation, what, address)


def test_a_port_that_becomes_free_in_a_moment_is_waited_for(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after kill -9 of a server, whose SuperLink ends half a second later."""
    monkeypatch.setattr(server, "PORT_SECONDS", 60.0)
    taken = socket.create_server(("127.0.0.1", int(federation.listen.rpartition(":")[2])))
    monkeypatch.setattr(server.time, "sleep", lambda seconds: taken.close())
    check_port(federation, "listen", federation.listen)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:70000", "127.0.0.1:http", ":8000", "", "203.0.113.9:8000"])
def test_an_impossible_address_is_named(federation: Federation, address: str) -> None:
    with pytest.raises(DeployError, match=r"control.* in .*federation\.toml"):
        check_port(federation, "control", address)


# One server a folder ------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.processes import split_address
from fairbloom.deploy.server.supervisor import lock_folder
with lock_folder(Federation(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_served_once_and_a_killed_server_leaves_no_lock(federation: Federation) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(federation.path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DeployError, match=f"is served already, by process {holder.pid} on "), lock_folder(federation):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with lock_folder(federation):
        assert str(os.getpid()) in (federation.state / "lock").read_text()
        with pytest.raises(DeployError, match=f"by process {os.getpid()} "), lock_folder(federation):
            pass
    with lock_folder(federation):
        pass


def test_a_state_folder_is_made_for_its_owner_alone(federation: Federation) -> None:
    for file in federation.state.iterdir():
        file.unlink()
    federation.state.rmdir()
    with lock_folder(federation):
        assert stat.S_IMODE(federation.state.stat().st_mode) == 0o700


def test_a_state_folder_that_cannot_be_used_is_named(federation: Federation) -> None:
    for file in federation.state.iterdir():
        file.unlink()
    federation.state.rmdir()
    federation.state.touch()
    with pytest.raises(DeployError, match=r"state.*cannot be opened"), lock_folder(federation):
        pass


# Keeping processes running ------------------------------------------------------------------------------------------


def test_a_part_that_ends_is_said_each_time_with_the_pause(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "SHORTEST_PAUSE", 0.05)
    part = FederationServer(federation)._superlink
    part._command = [sys.executable, "-c", "raise SystemExit(3)"]
    lines: list[str] = []
    while len(lines) < 3:
        part.check()
        lines += capsys.readouterr().err.splitlines()
    assert lines == ["fairbloom server: the SuperLink ended (exit code 3): it is started again in 0 s"] * 3


def test_a_part_that_is_not_ready_for_long_is_said_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "READY_SECONDS", -1.0)
    answers = iter([False, False, True])
    is_ready = Readiness(FederationServer(federation)._superlink, lambda: next(answers))
    assert [is_ready(), is_ready(), is_ready()] == [False, False, True]
    assert capsys.readouterr().err.count("the SuperLink is not ready after") == 1


def test_a_file_that_was_touched_later_is_newer(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert not is_newer(one, other)
    other.touch()
    assert not is_newer(one, other)
    one.touch()
    os.utime(other, ns=(1000, 1000))
    os.utime(one, ns=(1000, 1000))
    assert is_newer(one, other)
    os.utime(one, ns=(999, 999))
    assert not is_newer(one, other)
    other.unlink()
    assert not is_newer(one, other)


def test_the_processes_environment_holds_no_credential(federation: Federation) -> None:
    for part in (FederationServer(federation)._superlink, FederationServer(federation)._superexec):
        assert federation.operator_token.read_text() not in str(part._environment)


def test_a_fault_is_one_line_and_the_exit_code_says_so(federation: Federation) -> None:
    federation.runtime_secret.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "fairbloom.deploy.server", str(federation.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "runtime.secret cannot be read: No such file or directory" in done.stderr


def test_the_server_itself_stays_small() -> None:
    code = (
        "import fairbloom.deploy.server.supervisor, sys; print({'flwr', 'torch', 'numpy', 'grpc'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "set()"

"""Faults of a federation or a device, each with its remedy."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairbloom.client.guard.log_files import AuditLog
from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet.content import Content
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.session import KeptReply
from fairbloom.deploy.fleet.wire_pb2 import Head
from fairbloom.deploy.operator import doctor
from fairbloom.deploy.operator.doctor import CheckResult, examine, examine_device
from fairbloom.system.lock import exclusive_lock
from tests.experiments.helpers import fairbloom


def found(made: Path) -> dict[str, CheckResult]:
    return {check.subject: check for check in examine(Federation.read(made))}


def test_a_new_federation_only_needs_its_server(made: Path) -> None:
    checks = found(made)
    assert [subject for subject, check in checks.items() if check.verdict == "fault"] == ["server"]
    assert f"start fairbloom server --dir {made}" in checks["server"].words


@pytest.mark.parametrize(
    ("change", "subject", "words"),
    [
        (lambda made: (made / "ca.key").chmod(0o640), "secrets", "chmod go-rwx {made}/ca.key"),
        (lambda made: (made / "bundles" / "a" / "key").chmod(0o644), "secrets", "bundles/a/key"),
        (lambda made: made.chmod(0o755), "secrets", "chmod go-rwx {made}"),
        (
            lambda made: (made / "clients" / "b.toml").write_text("x"),
            "clients",
            "the files of b cannot be used: enrol",
        ),
        (
            lambda made: (made / "server.key").write_text("x"),
            "server key",
            "fairbloom deploy renew",
        ),
        (
            lambda made: (made / "ca.crt").unlink(),
            "CA certificate",
            "ca.crt cannot be read: No such file",
        ),
    ],
)
def test_each_fault_is_named_with_its_remedy(
    made: Path, change: Callable[[Path], object], subject: str, words: str
) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    change(made)
    assert found(made)[subject].verdict == "fault"
    assert words.format(made=made) in found(made)[subject].words


def test_a_certificate_that_ends_soon_is_a_warning(made: Path) -> None:
    federation = Federation.read(made)
    federation.renew(days=5.0)
    check = found(made)["server certificate"]
    assert (check.verdict, check.words) == (
        "warning",
        "server.crt holds for 5 more days: fairbloom deploy renew",
    )
    pki.make_server_certificate(*federation.authority, *federation.identity, ["a.org"], days=-2.0)
    assert "expired 2 days ago" in found(made)["server certificate"].words


def test_the_exit_code_says_whether_something_is_wrong(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "doctor") == 1
    assert "no server runs" in capsys.readouterr().out
    assert fairbloom("deploy", "doctor", "--dir", "nowhere") == 2


def test_a_device_learns_what_its_server_would_answer(bundle: Path) -> None:
    client = ClientSettings.of({}, bundle / "client.toml")
    checks = {check.subject: check for check in examine_device(client)}
    assert checks["server"].words.startswith("localhost:1 cannot be reached: Connection refused")
    assert checks["private key"].verdict == checks["log"].verdict == "ok"
    assert checks["book of profiles"].words.startswith("no profile and no table of the rows")
    (bundle / "state" / "profiles").mkdir(parents=True)
    (bundle / "state" / "profiles" / "0001.snapshot").write_bytes(b"?")
    checks = {check.subject: check for check in examine_device(client)}
    assert checks["book of profiles"].verdict == "fault"
    (bundle / "key").chmod(0o644)
    checks = {check.subject: check for check in examine_device(client)}
    assert f"chmod go-rwx {bundle / 'key'}" in checks["private key"].words


@pytest.mark.parametrize(
    ("kept", "logged", "verdict"),
    [
        (Head(), ["0"], "ok"),
        (Head(), [], "ok"),
        (Head(id="1", run=7), ["0", "1"], "ok"),
        (Head(id="1", run=7), ["1", "2"], "ok"),
        (Head(id="1", run=7), ["0"], "fault"),
        (Head(id="1", run=7), [], "fault"),
        (Head(id="1", run=7, code=2, reason="it raised"), [], "ok"),
    ],
)
def test_the_last_reply_must_be_in_the_log(
    tmp_path: Path, kept: Head, logged: list[str], verdict: str
) -> None:
    KeptReply(str(tmp_path)).save(kept, Content(b"an update"))
    for each in logged:
        AuditLog(tmp_path).note({"run": 7, "asked": "train", "message": each, "sent": {}}, {})
    check = doctor.check_log(tmp_path)
    assert check.verdict == verdict
    assert ("run 7, is not in" in check.words) == (verdict == "fault")


def test_a_full_disk_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_disk(tmp_path / "not" / "there").subject == "disk"
    monkeypatch.setattr(doctor, "SMALL_DISK_BYTES", 1e18)
    assert "make room" in doctor.check_disk(tmp_path).words


@pytest.mark.parametrize(
    ("connections", "is_full"),
    [
        ({"open": 760, "limit": 768}, True),
        ({"open": 980, "limit": 1000}, True),
        ({"open": 979, "limit": 1000}, False),
        ({"open": 5}, False),
        ({"limit": 1}, False),
        ({}, False),
    ],
)
def test_a_port_without_free_connections_is_a_fault(
    made: Path, connections: dict[str, int], is_full: bool
) -> None:
    (made / "state" / "now.json").write_text(
        json.dumps({"at": time.time(), "connections": connections})
    )
    with exclusive_lock(made / "state" / "lock"):
        check = found(made)["server"]
    assert check.verdict == "fault"
    words = f"all {connections.get('limit')} connections of the port are in use"
    assert check.words.startswith(words if is_full else "port 9092 does not answer here: ")
    assert ("docs/deployment.md" in check.words) == is_full


@pytest.mark.parametrize(
    ("answer", "words"), [("yes", "kept"), ("no", "is not kept"), ("", "is not known")]
)
def test_only_a_time_server_keeps_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    (tmp_path / "timedatectl").write_text(f"#!/bin/sh\necho {answer}\n")
    (tmp_path / "timedatectl").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor.check_clock()
    assert check.words.startswith(words)
    assert check.verdict == ("ok" if answer == "yes" else "warning")


@pytest.mark.parametrize(
    ("days", "verdict"),
    [(-1.0, "fault"), (0.0, "fault"), (0.5, "warning"), (29.5, "warning"), (30.0, "ok")],
)
def test_a_certificate_is_renewed_in_its_last_month(
    monkeypatch: pytest.MonkeyPatch, days: float, verdict: str
) -> None:
    monkeypatch.setattr(pki, "days_left", lambda certificate: days)
    assert doctor.check_expiry("client certificate", Path("x")).verdict == verdict

"""Enrolment of clients: certificates, bundles and files."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet import enrolment
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.members import Member
from tests.experiments.helpers import captured, fairbloom


def members(made: Path) -> dict[str, Member]:
    return {member.name: member for member in Federation.read(made).members()}


def request_of(folder: Path, name: str, key: ec.EllipticCurvePrivateKey | None = None) -> Path:
    file = folder / f"{name}.request"
    file.write_text(pki.write_request(key or pki.make_key(), name))
    return file


def test_a_bundle_has_all_that_a_device_needs(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "site-1", "site-2") == 0
    bundle = made / "bundles" / "site-2"
    assert stat.S_IMODE((bundle / "key").stat().st_mode) == 0o600
    client = ClientSettings.of({}, bundle / "client.toml")
    assert (client.server, client.name, client.partition_id) == ("fl.example.org:9092", "site-2", 1)
    assert (client.key, client.state_dir) == (str(bundle / "key"), str(bundle / "state"))
    assert (bundle / "fairbloom-client.service").read_text().startswith("[Unit]")
    kept = "".join(path.read_text() for path in (made / "clients").glob("*.toml"))
    assert "PRIVATE" in (bundle / "key").read_text()
    assert "PRIVATE" not in kept


def test_the_partition_of_a_revoked_client_is_free_again(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "b") == 0
    assert not (made / "bundles" / "b").exists()
    assert members(made)["b"].revoked
    assert fairbloom("deploy", "enroll", "b") == 0
    assert {name: member.partition for name, member in members(made).items()} == {
        "a": 0,
        "b": 1,
        "c": 2,
    }
    assert not members(made)["b"].revoked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enroll", "a/b"), "client 'a/b': use up to 63 letters"),
        (
            ("enroll", "There"),
            "client 'There' differs from client 'there', which is enrolled, only in spelling",
        ),
        (("enroll", "7.0"), "client '7.0' differs from client '7', which is enrolled"),
        (("enroll", "FL.example.org"), "is called like a host of the server's certificate"),
        (
            ("enroll", "x", "y", "--partition-id", "3"),
            "--partition-id 3 is for one client, and 2 are named",
        ),
        (("enroll", "x", "y", "--request", "f"), "--request f is for one client, and 2 are named"),
        (("enroll", "x", "--request", "f"), "--request f cannot be read: "),
        (("enroll", "x", "--partition-id", "-1"), "--partition-id -1: it is counted from 0"),
        (("enroll", "x", "--examples", "-1"), "--examples -1: it is counted from 0"),
        (("revoke", "x"), "client 'x' is not enrolled; enrolled are: 7, there"),
    ],
)
def test_an_invalid_option_is_named(
    made: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert fairbloom("deploy", "enroll", "there", "7") == 0
    before = (made / "clients" / "there.toml").read_bytes()
    assert message in captured(capsys, "deploy", *words, code=2).err
    assert {path.name for path in (made / "clients").iterdir()} == {"7.toml", "there.toml"}
    assert (made / "clients" / "there.toml").read_bytes() == before


def test_enroll_says_when_a_partition_is_beyond_the_clients(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "partition" not in captured(capsys, "deploy", "enroll", "a", "b", "c").err
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "3") == 0
    words = (
        "client d has partition 3, but clients=3 has only 0 to 2: set clients=4, or enrol it again"
        " with"
    )
    assert f"{words} --partition-id 1" in capsys.readouterr().err
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "1") == 0  # as the warning advised
    assert "partition" not in capsys.readouterr().err
    assert members(made)["d"].partition == 1


# Keys that are made on the device -----------------------------------------------------------------


def test_a_bundle_for_a_key_of_the_device_holds_nothing_secret(made: Path, tmp_path: Path) -> None:
    key = pki.make_key()
    request = request_of(tmp_path, "gate-7", key)
    assert fairbloom("deploy", "enroll", "gate-7", "--request", request, "--examples", "1200") == 0
    bundle = made / "bundles" / "gate-7"
    names = ["ca.crt", "certificate", "client.toml", "fairbloom-client.service"]
    assert sorted(file.name for file in bundle.iterdir()) == names
    member = members(made)["gate-7"]
    assert (member.key, member.examples) == (pki.digest_key(key.public_key()), 1200)


def test_an_invalid_request_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = pki.make_key()
    asked = request_of(tmp_path, "a", key)
    (tmp_path / "private").write_bytes(pki.format_key(key))
    assert (
        "is of client 'a', not 'b'"
        in captured(capsys, "deploy", "enroll", "b", "--request", asked, code=2).err
    )
    assert (
        "which has travelled and must be replaced"
        in captured(capsys, "deploy", "enroll", "a", "--request", tmp_path / "private", code=2).err
    )
    assert members(made) == {}


@pytest.mark.parametrize("name", "ab")
def test_a_key_has_one_client_and_never_returns_once_revoked(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    key = pki.make_key()
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a", key)) == 0
    # the bundle was lost
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a", key)) == 0
    assert fairbloom("deploy", "enroll", "b", "--request", request_of(tmp_path, "b", key)) == 2
    assert fairbloom("deploy", "revoke", "a") == 0
    assert (
        "client 'a'"
        in captured(
            capsys, "deploy", "enroll", name, "--request", request_of(tmp_path, name, key), code=2
        ).err
    )
    assert members(made)["a"].revoked


def test_a_name_is_taken_whatever_its_case_even_if_revoked(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "Gate") == 0
    assert fairbloom("deploy", "revoke", "Gate") == 0
    assert (
        "differs from client 'Gate', which is revoked, only in spelling"
        in captured(capsys, "deploy", "enroll", "gate", code=2).err
    )
    assert fairbloom("deploy", "enroll", "Gate") == 0


def test_clients_enrolled_at_once_get_different_partitions(made: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda name: enrolment.enroll(Federation.read(made), name), ["a", "a", "b", "c"]
            )
        )
    assert sorted(member.partition for member in members(made).values()) == [0, 1, 2]


def test_a_client_whose_bundle_cannot_be_written_is_not_enrolled(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "write_public", full)
        assert fairbloom("deploy", "enroll", "a") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert members(made) == {}


def test_a_client_that_is_enrolled_again_keeps_its_partition(made: Path, tmp_path: Path) -> None:
    assert fairbloom("deploy", "enroll", "other", "a", "--examples", "5") == 0
    key = pki.make_key()
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a", key)) == 0
    new = members(made)["a"]
    assert (new.partition, new.examples, new.key) == (1, 5, pki.digest_key(key.public_key()))
    assert fairbloom("deploy", "enroll", "a", "--partition-id", "7", "--examples", "9") == 0
    assert (members(made)["a"].partition, members(made)["a"].examples) == (7, 9)

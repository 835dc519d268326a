"""Enrolling clients, their keys and bundles, with an answering machine in place of Flower."""

import io
import json
import stat
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.operator import audit, device_bundle, enrolment, records
from fairbloom.deploy.operator.federation import Federation
from fairbloom.private.keys import key_of_device, read_identity
from tests.experiments.helpers import ROOT, fairbloom

from .commands import Machine, keys, noted, request_of

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
    client = ClientSettings.of({}, tmp_path / "site-2" / "client.toml")
    assert (client.superlink, client.name, client.partition_id) == ("fl.example.org:9092", "site-2", 1)
    assert (tmp_path / "site-2" / "fairbloom-client.service").read_text().startswith("[Unit]")
    private = (tmp_path / "site-2" / "key").read_text()
    kept = "".join(path.read_text() for path in (made / "clients").iterdir())
    assert "PRIVATE" in private
    assert "PRIVATE" not in kept


def test_an_unpacked_bundle_is_used_as_it_lies(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "site-1", "--unpacked") == 0
    assert ClientSettings.of({}, made / "bundles" / "site-1" / "client.toml").key == str(
        made / "bundles" / "site-1" / "key"
    )
    assert stat.S_IMODE((made / "bundles" / "site-1" / "key").stat().st_mode) == 0o600


def test_the_partition_of_a_revoked_client_is_free_again(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "b") == 0
    assert [(client.name, client.partition_id) for client in Federation(made).clients] == [("a", 0), ("b", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enroll", "a/b"), "client 'a/b': use up to 63 letters"),
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


def test_a_list_enrols_its_clients_with_what_it_says_of_them(made: Path, machine: Machine, tmp_path: Path) -> None:
    pair = pki.make_node_key()
    request_of(tmp_path, "b", pair)
    Path("sites.csv").write_text(
        "client,examples,request,partition-id\n# the north\na,1200,,\n\nb,,b.request,7\n c , 5,,\n"
    )
    assert fairbloom("deploy", "enroll", "--list", "sites.csv", "--examples", "9") == 0
    enrolled = [(client.name, client.examples, client.partition_id) for client in Federation(made).clients]
    assert enrolled == [("a", 1200, 0), ("b", 9, 7), ("c", 5, 1)]
    assert Federation(made).find_client("b").public_key == pair.public.decode()


def test_a_list_may_be_names_alone_and_come_by_standard_input(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("b\n\na\n"))
    assert fairbloom("deploy", "enroll", "--list", "-") == 0
    assert [(client.name, client.partition_id) for client in Federation(made).clients] == [("a", 1), ("b", 0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "--list sites cannot be read: "),
        ("", "--list sites names no client: write one name a line"),
        ("client\n", "--list sites names no client"),
        (
            "a\nb,5\n",
            "line 2 of --list sites has 2 cells, and 1 are read (client): begin the list with a line of column",
        ),
        ("client,size\na,5\n", "--list sites has a column 'size': it may have client, examples, partition-id, request"),
        ("client,client\na,b\n", "--list sites has a column 'client': it may have"),
        ("client,examples\na,many\n", "line 2 of --list sites has examples = 'many': it must be a whole number"),
        ("a\nb\nA\n", "A, a: listed more than once"),
        ("a\nthere\nover\n", "there, over: enrolled already, so nobody was enrolled; --keep leaves them as they are"),
        ("a\nb/c\n", "'b/c': use up to 63 letters, digits"),
    ],
)
def test_a_list_with_a_fault_enrols_nobody(
    made: Path, machine: Machine, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fairbloom("deploy", "enroll", "over", "there") == 0
    asked = machine.asked
    if text is not None:
        Path("sites").write_text(text)
    capsys.readouterr()
    assert fairbloom("deploy", "enroll", "--list", "sites") == 2
    assert words in capsys.readouterr().err
    assert machine.asked == asked
    assert len(Federation(made).clients) == 2


def test_names_and_a_list_are_not_both_given(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll") == 2
    assert fairbloom("deploy", "enroll", "a", "--list", "-") == 2
    assert capsys.readouterr().err.count("name the clients, or a file with their names by --list: one of both") == 2


def test_an_enrolment_that_stops_halfway_says_what_was_done_and_goes_on(
    made: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = {"success": True, "node-id": "77"}, {"success": False, "error-message": "database is locked"}
    machine.answers(register=[good, good, bad, good])
    assert fairbloom("deploy", "enroll", "a", "b", "c", "d") == 2
    said = capsys.readouterr().err
    assert "client c: flwr supernode register: database is locked" in said
    assert "Enrolled before it: a, b. Not enrolled: c, d. The same command with --keep goes on" in said
    assert [client.name for client in Federation(made).clients] == ["a", "b"]
    assert not (made / "bundles" / "c.tar.gz").exists()
    assert fairbloom("deploy", "enroll", "a", "b", "c", "d", "--keep") == 0
    assert capsys.readouterr().out.startswith("a is enrolled already\nb is enrolled already\nc: ")
    assert [client.name for client in Federation(made).clients] == ["a", "b", "c", "d"]


def test_enrol_says_when_a_partition_is_beyond_the_clients(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert "partition" not in capsys.readouterr().err
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "3") == 0
    assert (
        "client d has partition 3, and clients = 3 deals data to partitions 0 to 2: set clients=4, or revoke and enrol "
        "it again, which gives it partition 1" in capsys.readouterr().err
    )
    assert fairbloom("deploy", "revoke", "d") == 0
    assert fairbloom("deploy", "enroll", "d") == 0  # as was said
    assert "partition" not in capsys.readouterr().err
    assert Federation(made).find_client("d").partition_id == 1


# Keys that are made on the device -----------------------------------------------------------------------------------


def test_a_bundle_for_a_key_of_the_device_holds_nothing_secret(made: Path, machine: Machine, tmp_path: Path) -> None:
    pair = pki.make_node_key()
    request = request_of(tmp_path, "gate-7", pair)
    assert fairbloom("deploy", "enroll", "gate-7", "--request", request, "--examples", "1200") == 0
    assert (machine.folder / "registered.pub").read_bytes() == pair.public
    with tarfile.open(made / "bundles" / "gate-7.tar.gz") as packed:
        names = ["ca.crt", "client.toml", "fairbloom-client.service", "identity"]
        assert packed.getnames() == [f"gate-7/{name}" for name in names]
        identity = packed.extractfile("gate-7/identity")
        assert identity is not None
        known, authority = read_identity(identity.read(), key_of_device(pair.private))
        settings = packed.extractfile("gate-7/client.toml")
        assert settings is not None
        assert tomllib.loads(settings.read().decode())["key"] == "key"
    authority.check(known.certificate)
    (client,) = Federation(made).clients
    assert (client.public_key, client.examples) == (pair.public.decode(), 1200)
    assert datetime.fromisoformat(client.expires) - datetime.now(UTC) > timedelta(days=397.9)
    (line,) = noted(made)
    assert line["event"] == "enroll"
    assert (line["client"], line["node-id"], line["key"]) == ("gate-7", "77", pki.fingerprint(pair.public))
    assert (line["expires"], line["examples"]) == (client.expires, 1200)
    assert (known.name, known.certificate.expires) == ("gate-7", client.expires)


@pytest.mark.parametrize("lacking", ["signing key", "authority's key"])
def test_a_bundle_without_identity_is_said_and_serves_plain_runs(
    made: Path, tmp_path: Path, lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = request_of(tmp_path, "a")
    if lacking == "signing key":
        request.write_text(f"{pki.make_node_key().public.decode()} a\n")
    else:
        (made / "ca.key").unlink()  # the operator keeps it elsewhere
    assert fairbloom("deploy", "enroll", "a", "--unpacked", "--request", request) == 0
    why = "its request has no key for these" if lacking == "signing key" else "federation/ca.key is not here"
    said = capsys.readouterr().err
    assert "a cannot take part in private runs" in said
    assert f"{why}; fairbloom deploy rotate makes another bundle" in said
    assert not (made / "bundles" / "a" / "identity").exists()


def test_an_unpacked_bundle_for_a_key_of_the_device_has_no_key_of_before(made: Path, tmp_path: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "--unpacked") == 0
    assert fairbloom("deploy", "revoke", "a") == 0
    assert not (made / "bundles" / "a").exists()
    assert fairbloom("deploy", "enroll", "a", "--unpacked", "--request", request_of(tmp_path, "a")) == 0
    assert not (made / "bundles" / "a" / "key").exists()


def test_a_request_that_cannot_be_is_refused_and_noted(
    made: Path, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pki.make_node_key()
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
    assert pair.private.decode().splitlines()[1] not in audit.read_text(made / "state")


@pytest.mark.parametrize("then", [(), ("revoke",), ("rotate",), ("revoke", "enroll"), ("rotate", "revoke", "enroll")])
def test_a_key_that_was_known_once_is_never_enrolled_again(
    made: Path, tmp_path: Path, then: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pki.make_node_key()
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
            enrolment.enroll(Federation(made), enrolment.Applicant(name=name), unpack=False)
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
    assert audit.first_broken_line(made / "state") is None


def test_a_key_whose_bundle_cannot_be_written_is_taken_back(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(device_bundle, "_pack", full)
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
    old = Federation(made).find_client("a")
    machine.answers(register={"success": True, "node-id": "78"})
    pair = pki.make_node_key()
    assert fairbloom("deploy", "rotate", "a", "--request", request_of(tmp_path, "a", pair)) == 0
    new = Federation(made).find_client("a")
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
    expires = Federation(made).find_client("a").expires
    assert fairbloom("deploy", "rotate", "a", "--overlap", "7") == 0
    assert Federation(made).find_client("a").former[0].expires == expires


def test_without_overlap_the_old_key_is_unregistered_at_once(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    assert fairbloom("deploy", "rotate", "a", "--overlap", "0") == 0
    assert machine.asked[-1] == ["supernode", "unregister", "77", "federation", "--format", "json"]
    assert [key.node_id for key in keys(made)] == ["78"]
    assert Federation(made).find_client("a").former[0].unregistered


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
    assert Federation(made).clients[0].revoked


def test_a_rotation_does_not_slip_through_a_revocation(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    federation = Federation(made)
    with ThreadPoolExecutor(2) as pool:
        rotated = pool.submit(enrolment.rotate, federation, "a", False)
        revoked = pool.submit(enrolment.revoke, federation, "a")
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
    machine.answers(unregister=refused, list={"success": True, "nodes": [{"node-id": "77", "status": "offline"}]})
    assert fairbloom("deploy", "revoke", "b") == 2
    assert not Federation(made).find_client("b").revoked


def test_a_client_that_the_superlink_has_forgotten_is_revoked_all_the_same(made: Path, machine: Machine) -> None:
    """As after the database was deleted: revoke failed, and the key would have come back with a repair."""
    assert fairbloom("deploy", "enroll", "a") == 0
    (key,) = keys(made)
    machine.answers(
        unregister={"success": False, "error-message": "[code: 24] Node 77 not found"},
        list={"success": True, "nodes": []},
    )
    assert fairbloom("deploy", "revoke", "a") == 0
    federation = Federation(made)
    assert keys(made) == []
    assert federation.registry.revoked_keys() == [key.public_key]


def test_keys_are_read_while_their_files_are_being_replaced(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b") == 0
    federation, over = Federation(made), threading.Event()
    (one, two) = federation.clients

    def replace_both() -> None:
        while not over.is_set():
            federation.registry.save(one)
            (federation.registry.folder / "b.toml").unlink(missing_ok=True)
            federation.registry.save(two)

    replacing = threading.Thread(target=replace_both)
    replacing.start()
    seen = [[key.client for key in keys(made)] for _ in range(200)]
    over.set()
    replacing.join()
    assert all(names in (["a"], ["a", "b"]) for names in seen)


def test_a_clients_file_is_parsed_again_when_it_has_changed_alone(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand clients, each command looks at all of them."""
    assert fairbloom("deploy", "enroll", "a", "b") == 0
    federation, parse = Federation(made), Mock(side_effect=tomllib.loads)
    monkeypatch.setattr(records.tomllib, "loads", parse)
    (one, _), again = federation.clients, federation.clients
    assert parse.call_count == len(again) == 2
    federation.registry.save(replace(one, examples=7))
    assert [client.examples for client in federation.clients] == [7, 0]
    assert parse.call_count == 3


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
    assert ClientSettings.of({}, tmp_path / "device" / "a" / "client.toml").name == "a"
    assert stat.S_IMODE((tmp_path / "device" / "a" / "key").stat().st_mode) == 0o600
    assert fairbloom("deploy", "export", "c", "--to", "c.tar.gz") == 0
    assert capsys.readouterr().err == ""
    assert Path("c.tar.gz").read_bytes() == (made / "bundles" / "c.tar.gz").read_bytes()
    assert [line["client"] for line in noted(made) if line["event"] == "export"] == ["a", "c"]
    assert fairbloom("deploy", "export", "a", "--to", "nowhere/a.tar.gz") == 2
    assert "--to nowhere/a.tar.gz cannot be written: No such file" in capsys.readouterr().err


@pytest.mark.slow
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
    expires = Federation(made).find_client("site-1").expires
    found = json.loads(capsys.readouterr().out)
    rest = {"version": "", "busy-with-run": "", "keeps-models-of": []}
    ours = {"client": "site-1", "partition-id": 0, "status": "online", "last-seen": "now", "key-expires": expires}
    other = {"client": "node 5, not enrolled here", "partition-id": None, "status": "offline", "key-expires": ""}
    assert found["clients"] == [{**ours, **rest}, {**other, **rest, "last-seen": "2026-01-01 00:00:00Z"}]
    (told,) = found["runs"]
    assert {key: told[key] for key in run} == run
    assert "the server does not say how far its runs are" in told["unknown"]
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

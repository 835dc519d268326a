"""Enrolling clients, their keys and bundles, with an answering machine in place of Flower."""

import json
import stat
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.operator import device_bundle, enrolment, records
from fairbloom.deploy.operator.federation import Federation
from tests.experiments.helpers import fairbloom

from .commands import Machine, request_of

# Clients ------------------------------------------------------------------------------------------------------------


def test_enroll_registers_the_public_key_and_hands_out_the_private(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "site-1", "site-2") == 0
    assert machine.asked[0][:2] == ["supernode", "register"]
    assert machine.asked[0][3:] == ["federation", "--name", "site-1", "--format", "json"]
    bundle = made / "bundles" / "site-2"
    assert stat.S_IMODE((bundle / "key").stat().st_mode) == 0o600
    client = ClientSettings.of({}, bundle / "client.toml")
    assert (client.superlink, client.name, client.partition_id) == ("fl.example.org:9092", "site-2", 1)
    assert client.key == str(bundle / "key")
    assert (bundle / "fairbloom-client.service").read_text().startswith("[Unit]")
    kept = "".join(path.read_text() for path in (made / "clients").glob("*.toml"))
    assert "PRIVATE" in (bundle / "key").read_text()
    assert "PRIVATE" not in kept


def test_the_partition_of_a_revoked_client_is_free_again(made: Path) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "b") == 0
    assert [(client.name, client.partition_id) for client in Federation(made).clients] == [("a", 0), ("b", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("enroll", "a/b"), "client 'a/b': use up to 63 letters"),
        (("enroll", "There"), "client 'There' differs from client 'there', which is enrolled, in case alone"),
        (("enroll", "x", "y", "--partition-id", "3"), "--partition-id 3 is for one client, and 2 are named"),
        (("enroll", "x", "y", "--request", "f"), "--request f is for one client, and 2 are named"),
        (("enroll", "x", "--request", "f"), "--request f cannot be read: "),
        (("enroll", "x", "--partition-id", "-1"), "--partition-id -1: it is counted from 0"),
        (("enroll", "x", "--examples", "-1"), "--examples -1: it is counted from 0"),
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


def test_enrol_says_when_a_partition_is_beyond_the_clients(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "a", "b", "c") == 0
    assert "partition" not in capsys.readouterr().err
    assert fairbloom("deploy", "revoke", "b") == 0
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "3") == 0
    assert (
        "client d has partition 3, and clients = 3 deals data to partitions 0 to 2: set clients=4, or enrol it "
        "again with --partition-id 1" in capsys.readouterr().err
    )
    assert fairbloom("deploy", "enroll", "d", "--partition-id", "1") == 0  # as was said
    assert "partition" not in capsys.readouterr().err
    assert Federation(made).find_client("d").partition_id == 1


# Keys that are made on the device -----------------------------------------------------------------------------------


def test_a_bundle_for_a_key_of_the_device_holds_nothing_secret(made: Path, machine: Machine, tmp_path: Path) -> None:
    pair = pki.make_node_key()
    request = request_of(tmp_path, "gate-7", pair)
    assert fairbloom("deploy", "enroll", "gate-7", "--request", request, "--examples", "1200") == 0
    assert (machine.folder / "registered.pub").read_bytes() == pair.public
    bundle = made / "bundles" / "gate-7"
    names = ["ca.crt", "client.toml", "fairbloom-client.service"]
    assert sorted(file.name for file in bundle.iterdir()) == names
    assert tomllib.loads((bundle / "client.toml").read_text())["key"] == "key"
    (client,) = Federation(made).clients
    assert (client.public_key, client.examples) == (pair.public.decode(), 1200)


def test_a_bundle_for_a_key_of_the_device_has_no_key_of_before(made: Path, tmp_path: Path) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    assert fairbloom("deploy", "revoke", "a") == 0
    assert not (made / "bundles" / "a").exists()
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a")) == 0
    assert not (made / "bundles" / "a" / "key").exists()


def test_a_request_that_cannot_be_is_refused(
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


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("revoked", [False, True])
def test_a_key_is_enrolled_once(
    made: Path, tmp_path: Path, name: str, revoked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pki.make_node_key()
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a", pair)) == 0
    if revoked:
        assert fairbloom("deploy", "revoke", "a") == 0
    assert fairbloom("deploy", "enroll", name, "--request", request_of(tmp_path, name, pair)) == 2
    assert "client 'a'" in capsys.readouterr().err


def test_a_name_is_taken_whatever_its_case_even_if_revoked(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairbloom("deploy", "enroll", "Gate") == 0
    assert fairbloom("deploy", "revoke", "Gate") == 0
    assert fairbloom("deploy", "enroll", "gate") == 2
    assert "differs from client 'Gate', which is revoked, in case alone" in capsys.readouterr().err
    assert fairbloom("deploy", "enroll", "Gate") == 0


def test_clients_that_are_enrolled_at_once_get_partitions_of_their_own(made: Path, machine: Machine) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: enrolment.enroll(Federation(made), name), ["a", "a", "b", "c"]))
    assert sorted(client.partition_id for client in Federation(made).clients) == [0, 1, 2]
    assert [words[1] for words in machine.asked].count("unregister") == 1  # the key of the first of two


def test_a_key_whose_bundle_cannot_be_written_is_taken_back(
    made: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(device_bundle, "write_public", full)
        assert fairbloom("deploy", "enroll", "a") == 2
    assert "enroll: [Errno 28] No space left on device" in capsys.readouterr().err
    assert machine.asked[-1][:3] == ["supernode", "unregister", "77"]
    assert not Federation(made).clients


# Another key, and none ----------------------------------------------------------------------------------------------


def test_a_client_that_is_enrolled_again_keeps_its_partition_and_has_the_new_key_alone(
    made: Path, machine: Machine, tmp_path: Path
) -> None:
    assert fairbloom("deploy", "enroll", "other", "a", "--examples", "5") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    pair = pki.make_node_key()
    assert fairbloom("deploy", "enroll", "a", "--request", request_of(tmp_path, "a", pair)) == 0
    new = Federation(made).find_client("a")
    assert (new.partition_id, new.examples, new.node_id, new.public_key) == (1, 5, "78", pair.public.decode())
    assert [words[1] for words in machine.asked] == ["register"] * 3 + ["unregister"]
    assert machine.asked[-1] == ["supernode", "unregister", "77", "federation", "--format", "json"]
    assert not (made / "bundles" / "a" / "key").exists()
    assert fairbloom("deploy", "enroll", "a", "--partition-id", "7", "--examples", "9") == 0
    again = Federation(made).find_client("a")
    assert (again.partition_id, again.examples) == (7, 9)


def test_an_enrolment_does_not_slip_through_a_revocation(made: Path, machine: Machine) -> None:
    assert fairbloom("deploy", "enroll", "a") == 0
    machine.answers(register={"success": True, "node-id": "78"})
    federation = Federation(made)
    with ThreadPoolExecutor(2) as pool:
        again = pool.submit(enrolment.enroll, federation, "a")
        pool.submit(enrolment.revoke, federation, "a").result()
        again.result()
    unregistered = {words[2] for words in machine.asked if words[1] == "unregister"}
    assert unregistered == {"77", "78"} - {client.node_id for client in federation.enrolled}


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
    machine.answers(
        unregister={"success": False, "error-message": "[code: 24] Node 77 not found"},
        list={"success": True, "nodes": []},
    )
    assert fairbloom("deploy", "revoke", "a") == 0
    (client,) = Federation(made).clients
    assert client.revoked


def test_clients_are_read_while_their_files_are_being_replaced(made: Path) -> None:
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
    seen = [[client.name for client in Federation(made).enrolled] for _ in range(200)]
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
    found = json.loads(capsys.readouterr().out)
    rest = {"version": "", "busy-with-run": "", "keeps-models-of": []}
    ours = {"client": "site-1", "partition-id": 0, "status": "online", "last-seen": "now"}
    other = {"client": "node 5, not enrolled here", "partition-id": None, "status": "offline"}
    assert found["clients"] == [{**ours, **rest}, {**other, **rest, "last-seen": "2026-01-01 00:00:00Z"}]
    (told,) = found["runs"]
    assert {key: told[key] for key in run} == run
    assert "the server does not say how far its runs are" in told["unknown"]
    assert found["server"]["verdict"] == "fault"
    assert fairbloom("deploy", "status") == 0
    printed = capsys.readouterr().out
    assert "site-1" in printed
    assert "server: 127.0.0.1:8000 does not answer" in printed

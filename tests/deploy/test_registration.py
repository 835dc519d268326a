"""A database that lost its keys, or is older than the operator's files, is brought to what those say."""

from dataclasses import replace
from pathlib import Path

import pytest
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.error.catalog import API_ERROR_MAP
from grpc import StatusCode

from fairbloom.deploy import pki
from fairbloom.deploy.flower.server import superlink
from fairbloom.deploy.flower.server.registration import register_enrolled
from fairbloom.deploy.flower.server.superlink import is_file
from fairbloom.deploy.operator.federation import Federation
from fairbloom.deploy.operator.registry import EnrolledClient
from fairbloom.protocol.names import VERSION_HEADER
from tests.deploy.state import Call, SuperLinkState, confirm, head, reply_to

from .test_fleet import Place

NOW = "2026-11-20T10:00:00+00:00"


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation.init(tmp_path / "federation", ["localhost"], 9092, "127.0.0.1:8000", 30)


def enrolled(federation: Federation, name: str, node_id: int) -> EnrolledClient:
    public = pki.make_node_key().public.decode()
    client = EnrolledClient(name=name, node_id=str(node_id), partition_id=0, public_key=public, enrolled=NOW)
    federation.registry.save(client)
    return client


def started(federation: Federation) -> SuperLinkState:
    """The SuperLink's state as it is once a server with this folder has started."""
    link = SuperLinkState(federation.database)
    register_enrolled(link.state, federation.registry)
    return link


def node_of(link: SuperLinkState, public_key: str) -> int | None:
    found: int | None = link.state.get_node_id_by_public_key(pki.registered_form(public_key.encode()))
    return found


def test_a_deleted_database_gets_its_keys_back_under_their_numbers_and_names(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = enrolled(federation, "site-a", 2**64 - 3), enrolled(federation, "site-b", 12)
    link = started(federation)
    assert node_of(link, one.public_key) == 2**64 - 3
    assert node_of(link, two.public_key) == 12
    nodes = {node.node_id: (node.name, node.status) for node in link.state.get_node_info()}
    assert nodes == {2**64 - 3: ("site-a", "registered"), 12: ("site-b", "registered")}
    assert link.state.activate_node(12, 30)
    assert "the database did not know site-a, site-b: registered again" in caplog.text


def test_a_whole_database_is_left_as_it_is(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    client = enrolled(federation, "site-a", 7)
    assert started(federation).state.activate_node(7, 30)
    caplog.clear()
    link = started(federation)
    assert node_of(link, client.public_key) == 7
    assert [node.status for node in link.state.get_node_info()] == ["online"]
    assert caplog.text == ""


def test_a_deleted_database_lets_no_revoked_client_back_in(federation: Federation) -> None:
    revoked = enrolled(federation, "revoked", 1)
    federation.registry.save(replace(revoked, revoked=NOW))
    assert node_of(started(federation), revoked.public_key) is None


def test_an_older_database_forgets_the_key_that_was_replaced_since(federation: Federation) -> None:
    old = enrolled(federation, "site-a", 7)
    started(federation)
    new = enrolled(federation, "site-a", 8)
    link = started(federation)
    assert (node_of(link, old.public_key), node_of(link, new.public_key)) == (None, 8)


def test_an_older_database_forgets_who_was_revoked_since(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    client = enrolled(federation, "site-a", 7)
    assert node_of(started(federation), client.public_key) == 7
    federation.registry.save(replace(client, revoked=NOW))
    assert node_of(started(federation), client.public_key) is None
    assert "key struck off again" in caplog.text
    caplog.clear()
    started(federation)
    assert caplog.text == ""


def test_a_key_that_the_superlink_struck_off_is_not_registered_by_older_files(federation: Federation) -> None:
    client = enrolled(federation, "site-a", 7)
    started(federation).state.delete_node(NOOP_FLWR_AID, 7)
    assert node_of(started(federation), client.public_key) is None


def test_a_key_that_was_registered_by_hand_gets_the_number_of_the_file(federation: Federation) -> None:
    client = enrolled(federation, "site-a", 7)
    link = SuperLinkState(federation.database)
    public_key = pki.registered_form(client.public_key.encode())
    other = link.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 30, name="site-a")
    assert link.state.get_node_id_by_public_key(public_key) == other
    register_enrolled(link.state, federation.registry)
    assert link.state.get_node_id_by_public_key(public_key) == 7


def test_a_node_in_the_midst_of_a_lost_run_is_told_that_it_is_over(tmp_path: Path) -> None:
    """Flower answered with an internal error, and the node tried that call for ever and took no other work."""
    place = Place(tmp_path)
    sent = place.send()
    reply = reply_to(sent)
    place.run = 4711
    for message in (sent, reply):
        message.metadata.__dict__["_run_id"] = place.run
        message.metadata.__dict__["_message_id"] = message.object_id
    node = Node(node_id=place.node)
    calls = [
        (place.fleet.PullObject, PullObjectRequest(node=node, run_id=place.run, object_id=sent.object_id)),
        (place.fleet.ConfirmMessageReceived, confirm(sent)),
        (place.fleet.GetRun, GetRunRequest(node=node, run_id=place.run)),
        (place.fleet.PushMessages, head(reply)),
    ]
    for call, request in calls:
        with pytest.raises(FlowerError) as error:
            call(request, Call())
        assert API_ERROR_MAP[error.value.code].status_code == StatusCode.PERMISSION_DENIED  # at which nodes give up


# The file itself ----------------------------------------------------------------------------------------------------


def test_a_superlink_whose_database_is_deleted_or_replaced_ends_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answered on from a file that nobody sees, and all of it was lost when it ended."""
    file, ended = tmp_path / "superlink.db", list[int]()

    class EndedError(Exception):
        """The process is over."""

    def leave(code: int) -> None:
        ended.append(code)
        raise EndedError

    monkeypatch.setattr(superlink, "leave", leave)
    for change in (Path.unlink, lambda path: path.with_name("copy").replace(path)):
        for path in (file, tmp_path / "copy"):
            path.unlink(missing_ok=True)
            superlink.prepare_database(path)
        pauses = iter([lambda: None, lambda change=change: change(file)])
        monkeypatch.setattr(superlink.time, "sleep", lambda seconds, pauses=pauses: next(pauses)())
        with pytest.raises(EndedError):
            superlink.keep_small(file)
    assert ended == [1, 1]
    assert not is_file(tmp_path / "none", 1)


# Versions -----------------------------------------------------------------------------------------------------------


def test_the_superlink_keeps_which_version_each_node_said_last(tmp_path: Path) -> None:
    place = Place(tmp_path)

    def connect(*versions: str) -> str:
        place.link.state.query("UPDATE node SET status = 'offline', online_until = 0")
        request = ActivateNodeRequest(public_key=b"key-a", heartbeat_interval=30)
        place.fleet.ActivateNode(request, Call(b"key-a", "", *((VERSION_HEADER, version) for version in versions)))
        return str(place.link.state.versions()[place.node])

    assert place.link.state.versions() == {place.node: "", place.other: ""}
    assert connect("0.1.0") == "0.1.0"
    assert SuperLinkState(tmp_path / "superlink.db").state.versions()[place.node] == "0.1.0"
    assert connect("0.1.1.dev3+local") == "0.1.1.dev3+local"
    for none in ((), ("[red]0.1.0",), ("9" * 41,), ("0.1.0", "0.1.1"), ("0.1.0\x1b[2J",)):
        assert connect(*none) == ""
    place.link.state.delete_node(NOOP_FLWR_AID, place.node)
    assert place.link.state.versions() == {place.other: ""}

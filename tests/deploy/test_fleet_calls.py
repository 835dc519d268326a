"""A node's calls to its SuperLink: what they say of it, and what becomes of them where they fail."""

import importlib
import re
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from concurrent import futures
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import verify_signature
from flwr.superlink.federation import NoOpFederationManager
from grpc import StatusCode

from fairbloom import __version__
from fairbloom.deploy import pki
from fairbloom.deploy.device.outage import Outage
from fairbloom.deploy.flower.device import fleet as fleet_module
from fairbloom.deploy.flower.device.fleet import (
    AWAY,
    OPTIONS,
    SIGNATURE_AGE,
    ClosedError,
    Fleet,
    PartMissingError,
    RefusedError,
    RunOverError,
    UnknownNodeError,
    refusal_of,
)
from fairbloom.deploy.flower.retries import LONGEST_RETRY_SECONDS
from fairbloom.system.files import write_private

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    from flwr.superlink.cli.flower_superlink import _run_fleet_api_grpc_rere

ABOUT_NODE = ("fairbloom-version", "fairbloom-wire", "fairbloom-instance")


class Heard(FleetServicer):  # type: ignore[misc]
    """Stands for a SuperLink; keeps the headers of calls, and answers as it is told to."""

    def __init__(self) -> None:
        self.headers: list[tuple[str, dict[str, Any]]] = []
        self.refusals: dict[str, list[tuple[StatusCode, str]]] = {}
        self.pushed: list[str] = []
        self.drops = False

    def _hear(self, call: str, context: grpc.ServicerContext) -> None:
        self.headers.append((call, dict(context.invocation_metadata())))
        if self.refusals.get(call):
            context.abort(*self.refusals[call].pop(0))

    def ActivateNode(self, request: Any, context: grpc.ServicerContext) -> ActivateNodeResponse:  # noqa: N802
        self._hear("activate", context)
        return ActivateNodeResponse(node_id=1)

    def PullMessages(self, request: Any, context: grpc.ServicerContext) -> PullMessagesResponse:  # noqa: N802
        self._hear("pull", context)
        return PullMessagesResponse()

    def SendNodeHeartbeat(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._hear("beat", context)
        if self.drops:
            context.set_trailing_metadata((("fairbloom-drop", "the run is over"),))
        return SendNodeHeartbeatResponse(success=request.node.node_id == 1)

    def PushMessages(self, request: Any, context: grpc.ServicerContext) -> PushMessagesResponse:  # noqa: N802
        self._hear("head", context)
        return PushMessagesResponse(objects_to_push=["a", "b"], session_id="s")

    def PushObject(self, request: Any, context: grpc.ServicerContext) -> PushObjectResponse:  # noqa: N802
        self._hear("part", context)
        self.pushed.append(request.object_id)
        return PushObjectResponse(stored=request.object_id != "b")

    def PullObject(self, request: Any, context: grpc.ServicerContext) -> PullObjectResponse:  # noqa: N802
        self._hear("pull part", context)
        name, late = request.object_id, request.object_id == "late" and len(self.headers) < 6
        return PullObjectResponse(object_found=name != "lost", object_available=not late, object_content=name.encode())

    def ConfirmMessageReceived(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._hear("confirm", context)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_private(tmp_path / "key", pki.make_node_key().private)
    return tmp_path / "key"


@pytest.fixture
def fleet(heard: Heard, key: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A node that is connected to Heard, and waits little before it calls again."""
    monkeypatch.setattr(fleet_module.random, "uniform", lambda low, high: 0.01)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_FleetServicer_to_server(heard, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connected = Fleet(f"127.0.0.1:{port}", "", str(key), "abc", Outage())
    connected.connect()
    yield connected
    connected.close()
    server.stop(None)


# What a call says of its node ---------------------------------------------------------------------------------------


def test_the_call_by_which_a_node_comes_says_who_it_is_and_no_other_does(heard: Heard, fleet: Fleet) -> None:
    assert fleet.pull() is None
    fleet.beat("")
    said = {call: [headers.get(name) for name in ABOUT_NODE] for call, headers in heard.headers}
    assert said == {"activate": [__version__, "1", "abc"], "pull": [None] * 3, "beat": [None] * 3}


def test_each_call_has_a_signature_of_the_last_minute(heard: Heard, fleet: Fleet) -> None:
    fleet.pull()
    at, headers = fleet._signed
    fleet._signed = at - SIGNATURE_AGE, headers
    fleet.pull()
    fleet._signed = at + SIGNATURE_AGE, headers  # the clock was set back
    fleet.pull()
    for _, headers in heard.headers:
        public: Any = load_pem_public_key(headers[PUBLIC_KEY_HEADER])
        timestamp = headers[TIMESTAMP_HEADER]
        assert verify_signature(public, timestamp.encode("ascii"), headers[SIGNATURE_HEADER])
        assert abs((datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()) < 60.0
    assert len({headers[TIMESTAMP_HEADER] for _, headers in heard.headers}) == 3
    fleet.pull()
    assert heard.headers[-1][1][TIMESTAMP_HEADER] == heard.headers[-2][1][TIMESTAMP_HEADER]


def test_a_heartbeat_says_what_is_worked_on_and_hears_that_it_is_to_be_dropped(heard: Heard, fleet: Fleet) -> None:
    assert "fairbloom-drop" not in fleet.beat("")
    heard.drops = True
    assert fleet.beat("7/a")["fairbloom-drop"] == "the run is over"
    assert [headers.get("fairbloom-work") for call, headers in heard.headers if call == "beat"] == [None, "7/a"]


def test_a_node_that_the_superlink_has_forgotten_is_told_so(fleet: Fleet) -> None:
    fleet.node.node_id = 2
    with pytest.raises(UnknownNodeError, match="does not know this node any longer"):
        fleet.beat("")


def test_a_broken_connection_is_noticed_and_back_within_a_heartbeat() -> None:
    options = dict(OPTIONS)
    attempt = options["grpc.min_reconnect_backoff_ms"] + 1.2 * options["grpc.max_reconnect_backoff_ms"]
    assert attempt + 1000 * LONGEST_RETRY_SECONDS < 30_000
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 30_000


# Faults and refusals ------------------------------------------------------------------------------------------------


def test_a_superlink_that_is_away_is_said_once_and_when_it_is_back(
    heard: Heard, fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    heard.refusals["pull"] = [(StatusCode.UNAVAILABLE, "closed")] * 20
    assert fleet.pull() is None
    assert fleet.pull() is None
    away, back = capsys.readouterr().err.splitlines()
    assert away == f"fairbloom client: {AWAY}; retrying until it works"
    assert back == "fairbloom client: back: connected again after 0 s"


def failed(code: StatusCode, details: str = "") -> Any:
    return SimpleNamespace(code=lambda: code, details=lambda: details)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (StatusCode.UNAVAILABLE, "connection refused"),
        (StatusCode.INTERNAL, "database is locked"),
        (StatusCode.RESOURCE_EXHAUSTED, "too many calls of this node at once: try again"),
        (StatusCode.DEADLINE_EXCEEDED, ""),
    ],
)
def test_what_may_pass_is_tried_again(code: StatusCode, details: str) -> None:
    assert refusal_of(failed(code, details)) is None


FLOWERS = '{"code": 77, "public_message": "too large for this federation", "public_details": null}'


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (failed(StatusCode.UNAVAILABLE, "Ssl handshake failed"), RefusedError, "handshake failed"),
        (failed(StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max"), RefusedError, "larger than max"),
        (failed(StatusCode.UNAUTHENTICATED, "Invalid node ID"), UnknownNodeError, "UNAUTHENTICATED: Invalid node ID"),
        (failed(StatusCode.PERMISSION_DENIED), RunOverError, ""),
        (failed(StatusCode.INVALID_ARGUMENT, "no such thing"), RefusedError, "INVALID_ARGUMENT: no such thing"),
        (
            failed(StatusCode.FAILED_PRECONDITION, FLOWERS),
            RefusedError,
            r"FAILED_PRECONDITION: \[code: 77\] too large for this federation",
        ),
    ],
)
def test_what_does_not_pass_is_told_in_one_line(error: Any, kind: type[Exception], words: str) -> None:
    refusal = refusal_of(error)
    assert type(refusal) is kind
    assert re.search(words, str(refusal))


def test_a_call_that_waits_ends_when_the_connection_is_closed(heard: Heard, fleet: Fleet) -> None:
    heard.refusals["pull"] = [(StatusCode.UNAVAILABLE, "closed")] * 100_000
    threading.Timer(0.3, fleet.close).start()
    with pytest.raises(ClosedError):
        fleet.pull()
    with pytest.raises(ClosedError):
        fleet.beat("")


def test_parts_are_waited_for_until_they_are_there_and_a_lost_one_is_told(heard: Heard, fleet: Fleet) -> None:
    tree = ObjectTree(object_id="a", children=[ObjectTree(object_id="late")])
    assert fleet.receive(7, "a", tree) == {"a": b"a", "late": b"late"}
    assert [call for call, _ in heard.headers].count("confirm") == 1
    with pytest.raises(PartMissingError, match="the SuperLink does not have it"):
        fleet.receive(7, "lost", ObjectTree(object_id="lost"))
    assert [call for call, _ in heard.headers].count("confirm") == 1


def test_parts_that_are_not_stored_are_counted_and_the_others_sent(heard: Heard, fleet: Fleet) -> None:
    assert fleet.push(b"", b"", {"a": b"1", "b": b"2", "c": b"3"}, 0.1) == 1
    assert sorted(heard.pushed) == ["a", "b"]  # those that the SuperLink asked for
    heard.refusals["part"] = [(StatusCode.INTERNAL, "disk full")]
    assert fleet.push(b"", b"", {"a": b"1"}, 0.1) == 0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "superlink.db"


@pytest.fixture
def superlink(database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A node of a real SuperLink with a database, which waits little for a lock."""
    sql = importlib.import_module("flwr.supercore.sql_mixin")
    monkeypatch.setattr(sql, "SQLITE_PRAGMAS", (*sql.SQLITE_PRAGMAS, ("busy_timeout", "200")))
    objects = ObjectStoreFactory(str(database))
    state = LinkStateFactory(str(database), NoOpFederationManager(), objects)
    with warnings.catch_warnings(action="ignore"):  # Alembic's, when the database is made
        state.state()
    server = _run_fleet_api_grpc_rere("127.0.0.1:0", state, objects, enable_supernode_auth=False, certificates=None)
    connected = Fleet(server.bound_address, "", "", "abc", Outage())
    yield connected
    connected.close()
    server.stop(None)


def test_calls_are_tried_again_while_the_superlinks_database_is_locked(superlink: Fleet, database: Path) -> None:
    superlink.connect()
    lock = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    threading.Timer(1.0, lock.execute, ("ROLLBACK",)).start()
    superlink.beat("")
    assert not lock.in_transaction
    lock.close()


def test_a_node_without_a_key_registers_itself_and_leaves_nothing(superlink: Fleet, database: Path) -> None:
    superlink.connect()
    assert superlink.pull() is None
    superlink.disconnect()
    (left,) = sqlite3.connect(database).execute("SELECT count(*) FROM node WHERE status != 'unregistered'").fetchone()
    assert left == 0

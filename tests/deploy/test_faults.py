"""What a client's node does when its SuperLink is away, has a fault of its own, or refuses a call."""

import importlib
import logging
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.app import Message
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from grpc import StatusCode

from fairbloom.deploy.device.supervisor import say
from fairbloom.deploy.flower.device import faults
from fairbloom.deploy.flower.device import supernode as warm
from fairbloom.deploy.flower.device.answers import Resident
from fairbloom.deploy.flower.device.faults import AWAY, Remedies
from fairbloom.deploy.flower.device.unpacked import Unpacked
from fairbloom.deploy.flower.relied_on import INFLATABLE, LOOP
from fairbloom.deploy.flower.retries import Retries

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    from flwr.superlink.cli.flower_superlink import _run_fleet_api_grpc_rere

    command = importlib.import_module("flwr.supernode.cli.flower_supernode")

from .unpacking import message, node_state, version_of


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "superlink.db"


@pytest.fixture
def stub(database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetStub]:
    """The fleet API of a real SuperLink with a database, which waits little for a lock, as a node calls it."""
    sql = importlib.import_module("flwr.supercore.sql_mixin")
    monkeypatch.setattr(sql, "SQLITE_PRAGMAS", (*sql.SQLITE_PRAGMAS, ("busy_timeout", "200")))
    objects = ObjectStoreFactory(str(database))
    state = LinkStateFactory(str(database), NoOpFederationManager(), objects)
    with warnings.catch_warnings(action="ignore"):  # Alembic's, when the database is made
        state.state()
    server = _run_fleet_api_grpc_rere("127.0.0.1:0", state, objects, enable_supernode_auth=False, certificates=None)
    with grpc.insecure_channel(server.bound_address) as plain:
        yield FleetStub(grpc.intercept_channel(plain, RuntimeVersionClientInterceptor(component_name="SuperNode")))
    server.stop(None)


def patient_invoker(waits: list[float] | None = None) -> Any:
    invoker = faults.retry_faults(importlib.import_module(LOOP).make_simple_grpc_retry_invoker())
    invoker.wait_function = lambda seconds: None if waits is None else waits.append(seconds)
    return invoker


def test_calls_are_tried_again_while_the_superlinks_database_is_locked(stub: FleetStub, database: Path) -> None:
    stub.RegisterNode(RegisterNodeFleetRequest(public_key=b"key"))
    node = Node(node_id=stub.ActivateNode(ActivateNodeRequest(public_key=b"key", heartbeat_interval=30)).node_id)
    beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=30)
    lock, invoker = sqlite3.connect(database, isolation_level=None, check_same_thread=False), patient_invoker()
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(grpc.RpcError) as error:
        stub.PullMessages(PullMessagesRequest(node=node))
    assert error.value.code() == StatusCode.INTERNAL  # what Flower gives up at
    invoker.on_backoff = lambda state: lock.in_transaction and lock.execute("ROLLBACK")
    assert invoker.invoke(stub.SendNodeHeartbeat, beat).success
    lock.close()


@pytest.mark.parametrize(
    ("limit", "calls"),
    [({"maximum_concurrent_rpcs": 1}, 3), ({"options": [("grpc.max_receive_message_length", 100)]}, 1)],
)
def test_too_many_calls_are_tried_again_and_too_large_ones_are_not(limit: dict[str, Any], calls: int) -> None:
    """Both are RESOURCE_EXHAUSTED."""
    release, entered = threading.Event(), threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        entered.set()
        release.wait(300)
        return b""

    server = grpc.server(futures.ThreadPoolExecutor(4), **limit)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("x", {"Y": grpc.unary_unary_rpc_method_handler(wait)})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call, tries = channel.unary_unary("/x/Y"), list[StatusCode]()
        first = call.future(b"")
        entered.wait(300)
        invoker = patient_invoker()

        def note(state: Any) -> None:
            tries.append(state.exception.code())
            if len(tries) == calls - 1:
                release.set()
                first.result()

        invoker.on_backoff = invoker.on_giveup = note
        if calls == 1:
            with pytest.raises(grpc.RpcError):
                invoker.invoke(call, bytes(1000))
        else:
            invoker.invoke(call, b"")
        release.set()
        assert tries[0] == StatusCode.RESOURCE_EXHAUSTED
        assert len(tries) == max(calls - 1, 1)
    server.stop(None)


@pytest.mark.parametrize(("code", "gives_up"), [(StatusCode.UNAVAILABLE, False), (StatusCode.INVALID_ARGUMENT, True)])
def test_other_faults_are_flowers_business(code: StatusCode, gives_up: bool) -> None:
    error = SimpleNamespace(code=lambda: code, details=lambda: "")
    assert patient_invoker().should_giveup(error) == gives_up


class Refusal(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> StatusCode:
        return StatusCode.FAILED_PRECONDITION

    def details(self) -> str:
        return '{"code": 77, "public_message": "too large for this federation", "public_details": null}'


class Stranger(Refusal):
    def code(self) -> StatusCode:
        return StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return "Invalid node ID"


def test_a_node_that_is_no_longer_known_says_so_once_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = list[str]()
    monkeypatch.setattr(faults.log, "error", lambda words, *values: said.append(words % values))
    should_giveup = faults.retry_faults(SimpleNamespace(should_giveup=lambda error: True)).should_giveup
    assert [should_giveup(Stranger()) for _ in range(2)] == [True, True]
    assert said == ["UNAUTHENTICATED: Invalid node ID"]
    Remedies().emit(logging.LogRecord("flwr", logging.ERROR, "", 0, said[0], (), None))
    assert "the key was revoked by the federation's operator, or this device's clock" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "ends"), [(Refusal(), True), (Stranger(), False)])
def test_a_node_without_heartbeat_ends_with_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, ends: bool
) -> None:
    ended = list[int]()
    monkeypatch.setattr(faults, "leave", ended.append)
    monkeypatch.setattr(threading, "excepthook", faults.end_without_heartbeat)

    def beat() -> None:
        raise error

    thread = threading.Thread(target=beat)
    thread.start()
    thread.join()
    assert bool(ended) == ends
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's loop, for one test."""
    module, objects = importlib.import_module(LOOP), importlib.import_module(INFLATABLE)
    for name in ("_push_messages", "make_simple_grpc_retry_invoker", "time", "get_fused_config_from_fab"):
        monkeypatch.setattr(module, name, getattr(module, name))
    for function in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        monkeypatch.setitem(function.__kwdefaults__, "initial_backoff", 1.0)
    return module


@pytest.mark.parametrize("refuses", ["the reply", "its parts"])
def test_a_refused_reply_is_one_line_and_the_next_message_is_answered(
    loop: Any, home: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    fab, run = version_of(home, 1)
    state, store = node_state(fab, run)
    sent, stored = list[str](), list[str]()
    honest = False

    def send(reply: Message, tree: Any, seconds: float) -> tuple[set[str], str]:
        if refuses == "the reply" and not honest:
            raise Refusal
        sent.append(reply.metadata.message_id)
        return {reply.metadata.message_id, *(child.object_id for child in tree.children)}, "session"

    def push_object(run_id: int, session_id: str, object_id: str, content: bytes) -> None:
        if refuses == "its parts" and not honest:
            raise ObjectPushError(object_id, run_id, session_id)
        stored.append(object_id)

    warm.keep_warm(Resident(Unpacked()))
    said = list[str]()
    monkeypatch.setattr(
        warm.log,
        "handle",
        lambda record: said.append(record.getMessage()) if record.levelno >= logging.WARNING else None,
    )
    for number in (1, 2):
        asked = message("reply")
        asked.content["config"]["number"] = number
        loop._insert_message(asked, state, store)
        loop._push_messages(state=state, object_store=store, send=send, push_object=push_object)
        assert not state.get_messages(is_reply=True)
        honest = True
    if refuses == "the reply":
        assert len(said) == 1
        assert said[0].endswith("FAILED_PRECONDITION: [code: 77] too large for this federation")
    else:
        assert said == ["the SuperLink did not store 2 parts of the reply: it has them, or refuses them"]
    assert len(stored) == 2
    assert sent[-1] in stored


def test_a_superlink_that_is_away_is_said_once_and_when_it_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Retries(say, AWAY)

    def passes(words: str, *values: object) -> bool:
        return bool(quiet.filter(logging.LogRecord("flwr", logging.WARNING, "", 0, words, values, None)))

    attempt, success = "Connection attempt failed, retrying in %.2f seconds", "Connection successful after %.2f seconds"
    assert not any(passes(attempt, 1.0) for _ in range(20))
    assert not any(passes(success, 3.0) for _ in range(2))
    assert passes("Received successfully")
    away, back = capsys.readouterr().err.splitlines()
    assert "the SuperLink does not answer" in away
    assert "back: connected again after 0 s" in back

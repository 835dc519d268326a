"""The parts of a warm client that need no federation: what it relies on, how it answers, what it survives."""

import contextlib
import hashlib
import importlib
import inspect
import itertools
import logging
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from grpc import StatusCode

from fairbloom.deploy import warm
from fairbloom.deploy.answers import AppError, CrashedError, Isolated, Resident
from fairbloom.deploy.bundles import Unpacked, forget
from fairbloom.deploy.client import CONNECTED, Client
from fairbloom.deploy.processes import Retries, missing_names
from fairbloom.deploy.warm import AWAY, RELIED_ON, USED, Pace, Remedies

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    from flwr.cli.build import build_fab_from_disk
    from flwr.superlink.cli.flower_superlink import _run_fleet_api_grpc_rere

    command = importlib.import_module("flwr.supernode.cli.flower_supernode")

# Flower's names -----------------------------------------------------------------------------------------------------


def test_flower_has_every_name_that_is_replaced_or_used() -> None:
    assert missing_names(RELIED_ON) == []


@pytest.mark.parametrize(
    "name", ["flwr.no_such_module:thing", "flwr.app:NoSuchThing", next(iter(USED)).replace("_insert", "_inserts")]
)
def test_a_name_that_is_gone_is_found_out(name: str) -> None:
    assert missing_names({name: ()}) == [f"{name}()"]


def test_a_parameter_that_is_gone_is_found_out() -> None:
    assert missing_names({"flwr.app:Message": ("content", "colour")}) == ["flwr.app:Message(content, colour)"]


@pytest.fixture
def other_flower(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A Flower that lacks a name; the arguments with which its own SuperNode was started."""
    started = list[list[str]]()
    monkeypatch.setattr(warm, "missing_names", lambda names: ["flwr.x:y()"])
    monkeypatch.setattr(warm, "end_with", lambda parent: None)
    monkeypatch.setattr(command, "flower_supernode", lambda: started.append(list(sys.argv)))
    monkeypatch.setattr(warm, "leave", sys.exit)
    return started


def test_flower_logs_the_words_by_which_a_client_is_known_to_be_connected() -> None:
    loop, retry = (importlib.import_module(name) for name in (warm.LOOP, "flwr.supercore.retry.grpc_retry"))
    assert f'"{CONNECTED.decode()} %s"' in inspect.getsource(loop.start_client_internal)
    for words in (Retries.ATTEMPTS[0], Retries.SUCCESS):
        assert f'"{words}' in inspect.getsource(retry.make_simple_grpc_retry_invoker)


def test_without_the_names_flowers_own_way_is_taken_and_said(
    other_flower: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["warm", "--isolated", "--any-bundle", "--", "--superlink", "a:1"])
    with pytest.raises(SystemExit):
        warm.main()
    assert other_flower == [["flower-supernode", "--superlink", "a:1"]]
    assert "this version of Flower has no flwr.x:y(): going on in Flower's own way" in capsys.readouterr().err


def test_without_the_names_a_client_of_installed_code_does_not_start(
    other_flower: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower's own way unpacks and runs whatever comes."""
    monkeypatch.setattr(sys, "argv", ["warm", "--", "--superlink", "a:1"])
    with pytest.raises(SystemExit):
        warm.main()
    assert other_flower == []
    assert "this version of Flower has no flwr.x:y(): without, this client cannot keep code" in capsys.readouterr().err


def test_a_replaced_bundle_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle_of_test").mkdir()
    (tmp_path / "bundle_of_test" / "__init__.py").write_text("answer = 1")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import bundle_of_test  # type: ignore[import-not-found]

    assert bundle_of_test.answer == 1
    forget(tmp_path)
    assert "bundle_of_test" not in sys.modules
    assert str(tmp_path) not in sys.path


# Answers ------------------------------------------------------------------------------------------------------------


APP = """
import os
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
calls = 0

@app.train()
def train(message, context):
    global calls
    calls += 1
    context.state["seen"] = MetricRecord({"calls": calls})
    wanted = message.content["config"]["do"]
    if wanted == "raise":
        raise ValueError("a reason")
    if wanted == "crash":
        os.kill(os.getpid(), 11)
    if wanted == "exit":
        raise SystemExit(5)
    metrics = MetricRecord({"calls": calls, "version": VERSION, "state-dir": len(str(context.run_config["state-dir"]))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""
PROJECT = """
[project]
name = "tried"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "tried_app:app"
clientapp = "tried_app:app"
"""
numbers = itertools.count()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("tried_app", None)


def bundle_of(home: Path, version: int) -> tuple[Any, Any]:
    app = home / f"app-{next(numbers)}"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "tried_app.py").write_text(f"VERSION = {version}\n{APP}")
    with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
        content = build_fab_from_disk(app)
    run = Run.create_empty(run_id=1)
    run.fab_id, run.fab_version = "test/tried", "1.0.0"
    return Fab(hashlib.sha256(content).hexdigest(), content, {}), run


def message(do: str) -> Message:
    asked = Message(RecordDict({"config": ConfigRecord({"do": do})}), dst_node_id=2, message_type="train")
    asked.metadata.__dict__["_message_id"] = "one"
    return asked


def context() -> Context:
    return Context(1, 2, {"state-dir": "/own"}, RecordDict(), {"state-dir": "/of/the/run"})


@pytest.fixture(params=[Resident, Isolated])
def answer(request: pytest.FixtureRequest) -> Any:
    return request.param(Unpacked())


def test_a_message_is_answered_and_the_context_kept(answer: Any, home: Path) -> None:
    reply, changed = answer(*bundle_of(home, 7), 3, message("reply"), context())
    assert reply.content["metrics"]["version"] == 7
    assert reply.content["metrics"]["state-dir"] == len("/own")  # this device's word counts for its own disk
    assert changed.run_config == {"state-dir": "/of/the/run"}
    assert changed.state["seen"]["calls"] == 1


def test_the_resident_app_stays_loaded_until_another_bundle_comes(home: Path) -> None:
    resident, first, second = Resident(Unpacked()), bundle_of(home, 1), bundle_of(home, 2)
    seen = []
    for bundle in (first, first, second, first):
        reply, _ = resident(*bundle, 3, message("reply"), context())
        seen.append((reply.content["metrics"]["version"], reply.content["metrics"]["calls"]))
    assert seen == [(1, 1), (1, 2), (2, 1), (1, 1)]


def test_what_the_app_raises_comes_out_in_words_and_leaves_the_context(answer: Any, home: Path) -> None:
    before = context()
    with pytest.raises((ValueError, AppError), match="a reason"):
        answer(*bundle_of(home, 1), 3, message("raise"), before)
    assert not before.state


def test_a_crash_of_an_isolated_app_is_noticed_at_once(home: Path) -> None:
    isolated, bundle, started = Isolated(Unpacked()), bundle_of(home, 1), time.monotonic()
    with pytest.raises(CrashedError, match="killed by SIGSEGV"):
        isolated(*bundle, 3, message("crash"), context())
    assert time.monotonic() - started < 20.0
    reply, _ = isolated(*bundle, 3, message("reply"), context())
    assert reply.content["metrics"]["version"] == 1


def test_an_app_that_exits_does_not_end_the_client(answer: Any, home: Path) -> None:
    with pytest.raises(AppError, match="SystemExit: 5"):
        answer(*bundle_of(home, 1), 3, message("exit"), context())


def test_the_end_of_the_node_in_the_midst_of_the_app_is_no_error_of_the_app(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr("flwr.supercore.exit.add_exit_handler", handlers.append)
    resident = Resident(Unpacked())
    for handler in handlers:  # as Flower does on SIGTERM, before it raises SystemExit
        handler()
    with pytest.raises(SystemExit):
        resident(*bundle_of(home, 1), 3, message("exit"), context())


# In Flower's loop ---------------------------------------------------------------------------------------------------


def test_a_message_that_a_stopped_run_left_half_received_is_dropped(home: Path) -> None:
    fab, run = bundle_of(home, 1)
    run.fab_hash, run.series_id = fab.hash_str, 4
    store = InMemoryObjectStore()
    state = InMemoryNodeState(store)
    state.set_node_id(2)
    state.store_run(run)
    state.store_fab(fab)
    state.set_run_series_context(4, context())
    torn, whole = message("reply"), message("reply")
    torn.metadata.__dict__["_message_id"] = torn.object_id
    store.preregister(1, get_object_tree(torn))
    state.store_message(torn)
    whole.content["config"]["do"] = "reply"
    whole.content["config"]["round"] = 2
    importlib.import_module(warm.LOOP)._insert_message(whole, state, store)

    warm.answer_next(state, store, Resident(Unpacked()))

    (reply,) = state.get_messages(is_reply=True)
    assert reply.metadata.reply_to_message_id == whole.metadata.message_id
    assert not reply.has_error()
    assert [*state.msg_store] == [whole.metadata.message_id, reply.metadata.message_id]
    assert store.get(torn.metadata.message_id) is None


# A SuperLink with faults --------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "superlink.db"


@pytest.fixture
def stub(database: Path) -> Iterator[FleetStub]:
    """The fleet API of a real SuperLink with a database, as a node calls it."""
    objects = ObjectStoreFactory(str(database))
    state = LinkStateFactory(str(database), NoOpFederationManager(), objects)
    with warnings.catch_warnings(action="ignore"):  # Alembic's, when the database is made
        state.state()
    server = _run_fleet_api_grpc_rere("127.0.0.1:0", state, objects, enable_supernode_auth=False, certificates=None)
    with grpc.insecure_channel(server.bound_address) as plain:
        yield FleetStub(grpc.intercept_channel(plain, RuntimeVersionClientInterceptor(component_name="SuperNode")))
    server.stop(None)


def patient_invoker(waits: list[float] | None = None) -> Any:
    invoker = warm.patient(importlib.import_module(warm.LOOP).make_simple_grpc_retry_invoker())
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
        release.wait(10)
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
        entered.wait(10)
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
    monkeypatch.setattr(warm.log, "error", lambda words, *values: said.append(words % values))
    should_giveup = warm.patient(SimpleNamespace(should_giveup=lambda error: True)).should_giveup
    assert [should_giveup(Stranger()) for _ in range(2)] == [True, True]
    assert said == ["UNAUTHENTICATED: Invalid node ID"]
    Remedies().emit(logging.LogRecord("flwr", logging.ERROR, "", 0, said[0], (), None))
    assert "the key was revoked by the federation's operator, or the SuperLink has lost its" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "ends"), [(Refusal(), True), (Stranger(), False)])
def test_a_node_without_heartbeat_ends_with_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, ends: bool
) -> None:
    ended = list[int]()
    monkeypatch.setattr(warm, "leave", ended.append)
    monkeypatch.setattr(threading, "excepthook", warm.end_without_heartbeat)

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
    module, objects = importlib.import_module(warm.LOOP), importlib.import_module(warm.OBJECTS)
    for name in ("_push_messages", "make_simple_grpc_retry_invoker", "time", "get_fused_config_from_fab"):
        monkeypatch.setattr(module, name, getattr(module, name))
    for function in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        monkeypatch.setitem(function.__kwdefaults__, "initial_backoff", 1.0)
    return module


@pytest.mark.parametrize("refuses", ["the reply", "its parts"])
def test_a_refused_reply_is_one_line_and_the_next_message_is_answered(
    loop: Any, home: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    fab, run = bundle_of(home, 1)
    run.fab_hash, run.series_id = fab.hash_str, 4
    store = InMemoryObjectStore()
    state = InMemoryNodeState(store)
    state.set_node_id(2)
    state.store_run(run)
    state.store_fab(fab)
    state.set_run_series_context(4, context())
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
    quiet = Retries(warm.say, AWAY)

    def passes(words: str, *values: object) -> bool:
        return bool(quiet.filter(logging.LogRecord("flwr", logging.WARNING, "", 0, words, values, None)))

    attempt, success = "Connection attempt failed, retrying in %.2f seconds", "Connection successful after %.2f seconds"
    assert not any(passes(attempt, 1.0) for _ in range(20))
    assert not any(passes(success, 3.0) for _ in range(2))
    assert passes("Received successfully")
    away, back = capsys.readouterr().err.splitlines()
    assert "the SuperLink does not answer" in away
    assert "back: connected again after 0 s" in back


# The node's own port ------------------------------------------------------------------------------------------------


def listening(pid: int) -> list[str]:
    """Return the local addresses on which a process listens."""
    held = set[str]()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as files are that are being read
            held.add(str(file.readlink()))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


@pytest.mark.runtimes
@pytest.mark.parametrize("options", [{}, {"bundles": "any"}, {"isolated": True}], ids=str)
def test_a_node_serves_no_api_on_its_device(options: dict[str, Any], tmp_path: Path) -> None:
    """Whoever can connect to Flower's may take a message and answer it in the client's name."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = Client(superlink=address, insecure=True, state_dir=str(tmp_path), **options)
        node = subprocess.Popen(client.command(), env=client.environment(), stderr=subprocess.PIPE, text=True)
        assert node.stderr is not None
        try:
            silent.settimeout(120)
            silent.accept()[0].close()  # the loop has begun: Flower's API would be there by now
            assert listening(node.pid) == []
        finally:
            node.kill()
            node.wait()
            node.stderr.close()


# Waits --------------------------------------------------------------------------------------------------------------


def test_a_busy_node_waits_little_and_an_idle_one_never_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace()
    pace.sleep(3.0)
    while clock.now < 5.0:
        pace.sleep(3.0)
    assert clock.slept[0] == warm.SHORTEST_SECONDS
    assert 0.4 < clock.slept[-1] < 0.5
    while clock.now < 3600.0:
        pace.sleep(3.0)
    assert clock.slept[-1] == warm.LONGEST_SECONDS
    pace.worked()
    pace.sleep(3.0)
    pace.sleep(0.01)
    assert clock.slept[-2:] == [warm.SHORTEST_SECONDS, 0.01]


class Clock:
    """A clock that sleeping and `now` move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 0.0, list[float]()
        monkeypatch.setattr(warm, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

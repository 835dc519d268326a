"""The parts of a warm client that need no server: what it relies on, which bundles it runs, how it forgets one."""

import hashlib
import importlib
import io
import itertools
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from grpc import StatusCode

from deploy import warm
from deploy.warm import (
    USED,
    AppError,
    BundleRefusedError,
    CrashedError,
    Isolated,
    Pace,
    Resident,
    check_bundle,
    forget,
    missing_names,
)

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    from flwr.cli.build import build_fab_from_disk

    command = importlib.import_module("flwr.supernode.cli.flower_supernode")

ROOT = Path(__file__).parents[2]


def packed(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        for name, text in files.items():
            bundle.writestr(name, text)
    return content.getvalue()


# Flower's names -----------------------------------------------------------------------------------------------------


def test_flower_has_every_name_that_is_replaced_or_used() -> None:
    assert missing_names() == []


@pytest.mark.parametrize(
    "name", ["flwr.no_such_module:thing", "flwr.app:NoSuchThing", next(iter(USED)).replace("_insert", "_inserts")]
)
def test_a_name_that_is_gone_is_found_out(name: str) -> None:
    assert missing_names({name: ()}) == [f"{name}()"]


def test_a_parameter_that_is_gone_is_found_out() -> None:
    assert missing_names({"flwr.app:Message": ("content", "colour")}) == ["flwr.app:Message(content, colour)"]


def test_without_the_names_flowers_own_way_is_taken_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, ended = list[list[str]](), list[int]()
    monkeypatch.setattr(warm, "missing_names", lambda: ["flwr.x:y()"])
    monkeypatch.setattr(warm, "_end_with", lambda parent: None)
    monkeypatch.setattr(warm.os, "_exit", ended.append)
    monkeypatch.setattr(command, "flower_supernode", lambda: started.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", ["warm", "--isolated", "--", "--superlink", "a:1"])
    warm.main()
    assert (started, ended) == ([["flower-supernode", "--superlink", "a:1"]], [1])
    assert "this version of Flower has no flwr.x:y(): going on in Flower's own way" in capsys.readouterr().err


# Bundles ------------------------------------------------------------------------------------------------------------


def test_the_code_that_is_installed_is_ours_whatever_the_server_side() -> None:
    own = {"client/app.py": (ROOT / "client" / "app.py").read_bytes()}
    free = {"pyproject.toml": b"x", "strategies/mine.py": b"x", "server/app.py": b"x", ".info/CONTENT": b"x"}
    check_bundle(packed(**own, **free))


@pytest.mark.parametrize(
    "name",
    [
        *("client/app.py", "client/more.py", "tasks/__init__.py", "torch.py", "torch.pyc", "torch.so", "torch/x.py"),
        *("server/../torch.py", "../torch.py", "/torch.py", "strategies.py", "client/app.toml/../more.py"),
    ],
)
def test_other_code_is_refused_by_name(name: str) -> None:
    with pytest.raises(BundleRefusedError) as error:
        check_bundle(packed(**{name: b"import os"}))
    assert name in str(error.value)


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
    return request.param(any_bundle=True)


def test_a_message_is_answered_and_the_context_kept(answer: Any, home: Path) -> None:
    reply, changed = answer(*bundle_of(home, 7), 3, message("reply"), context())
    assert reply.content["metrics"]["version"] == 7
    assert reply.content["metrics"]["state-dir"] == len("/own")  # this device's word counts for its own disk
    assert changed.run_config == {"state-dir": "/of/the/run"}
    assert changed.state["seen"]["calls"] == 1


def test_the_resident_app_stays_loaded_until_another_bundle_comes(home: Path) -> None:
    resident, first, second = Resident(any_bundle=True), bundle_of(home, 1), bundle_of(home, 2)
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
    isolated, bundle, started = Isolated(any_bundle=True), bundle_of(home, 1), time.monotonic()
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
    resident = Resident(any_bundle=True)
    for handler in handlers:  # as Flower does on SIGTERM, before it raises SystemExit
        handler()
    with pytest.raises(SystemExit):
        resident(*bundle_of(home, 1), 3, message("exit"), context())


def test_a_foreign_bundle_is_refused(home: Path) -> None:
    for answer in (Resident(), Isolated()):
        with pytest.raises(BundleRefusedError, match=r"tried_app\.py is not what is installed"):
            answer(*bundle_of(home, 1), 3, message("reply"), context())


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

    warm.answer_next(state, store, Resident(any_bundle=True))

    (reply,) = state.get_messages(is_reply=True)
    assert reply.metadata.reply_to_message_id == whole.metadata.message_id
    assert not reply.has_error()
    assert [*state.msg_store] == [whole.metadata.message_id, reply.metadata.message_id]
    assert store.get(torn.metadata.message_id) is None


@pytest.mark.parametrize(
    ("code", "gives_up"),
    [(StatusCode.INTERNAL, False), (StatusCode.UNAVAILABLE, False), (StatusCode.INVALID_ARGUMENT, True)],
)
def test_a_fault_of_the_superlinks_own_is_tried_again(code: StatusCode, gives_up: bool) -> None:
    error = SimpleNamespace(code=lambda: code, details=lambda: "")
    invoker = warm.patient(importlib.import_module(warm.LOOP).make_simple_grpc_retry_invoker())
    assert invoker.should_giveup(error) == gives_up


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

"""How a warm client's app is called for a message, in this process and in a forked one."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from fairbloom.deploy.flower.device.answers import AppError, CrashedError, Isolated, Resident
from fairbloom.deploy.flower.device.inbox import answer_next
from fairbloom.deploy.flower.device.unpacked import Unpacked
from fairbloom.deploy.flower.relied_on import LOOP
from fairbloom.errors import FairbloomError

with warnings.catch_warnings(action="ignore"):  # Flower's, about its own dependencies
    command = importlib.import_module("flwr.supernode.cli.flower_supernode")

from .unpacking import APP, bundle_of, context, message, node_state, version_of

TELLING = """

class Telling(Exception):
    reportable = "the scanner is off"
"""


@pytest.fixture(params=[Resident, Isolated])
def answer(request: pytest.FixtureRequest, home: Path) -> Any:
    return request.param(Unpacked())


@pytest.mark.slow
def test_a_message_is_answered_and_the_context_kept(answer: Any, home: Path) -> None:
    reply, changed = answer(*version_of(home, 7), 3, message("reply"), context())
    assert reply.content["metrics"]["version"] == 7
    assert reply.content["metrics"]["state-dir"] == len("/own")  # this device's word counts for its own disk
    assert changed.run_config == {"state-dir": "/of/the/run"}
    assert changed.state["seen"]["calls"] == 1


def test_the_resident_app_stays_loaded_until_another_bundle_comes(home: Path) -> None:
    resident, first, second = Resident(Unpacked()), version_of(home, 1), version_of(home, 2)
    seen = []
    for bundle in (first, first, second, first):
        reply, _ = resident(*bundle, 3, message("reply"), context())
        seen.append((reply.content["metrics"]["version"], reply.content["metrics"]["calls"]))
    assert seen == [(1, 1), (1, 2), (2, 1), (1, 1)]


def test_what_the_app_raises_comes_out_in_words_and_leaves_the_context(answer: Any, home: Path) -> None:
    before = context()
    with pytest.raises((ValueError, AppError), match="a reason"):
        answer(*version_of(home, 1), 3, message("raise"), before)
    assert not before.state


def test_a_crash_of_an_isolated_app_is_noticed_at_once(home: Path) -> None:
    isolated, bundle = Isolated(Unpacked()), version_of(home, 1)
    with pytest.raises(CrashedError, match="killed by SIGSEGV"):
        isolated(*bundle, 3, message("crash"), context())
    reply, _ = isolated(*bundle, 3, message("reply"), context())
    assert reply.content["metrics"]["version"] == 1


def test_an_app_that_exits_does_not_end_the_client(answer: Any, home: Path) -> None:
    with pytest.raises(AppError, match="SystemExit: 5"):
        answer(*version_of(home, 1), 3, message("exit"), context())


def test_the_end_of_the_node_in_the_midst_of_the_app_is_no_error_of_the_app(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr("fairbloom.deploy.flower.device.answers.add_exit_handler", handlers.append)
    resident = Resident(Unpacked())
    for handler in handlers:  # as Flower does on SIGTERM, before it raises SystemExit
        handler()
    with pytest.raises(SystemExit):
        resident(*version_of(home, 1), 3, message("exit"), context())


@pytest.mark.parametrize(("error", "traceback"), [(FairbloomError("no such partition"), False), (KeyError("x"), True)])
def test_what_a_user_can_mend_has_no_traceback_on_the_device(
    home: Path, error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fab, run = version_of(home, 1)
    state, store = node_state(fab, run)
    asked = message("reply")
    importlib.import_module(LOOP)._insert_message(asked, state, store)

    def answer(*given: Any) -> Any:
        raise error

    answer_next(state, store, answer)
    (reply,) = state.get_messages(is_reply=True)
    assert reply.error.reason.startswith(f"{type(error).__name__} in test_answers.py, line ")
    assert f"the client app raised {error}" in caplog.text
    assert f"answered with error 2: {reply.error.reason}" in caplog.text
    assert ("Traceback" in caplog.text) is traceback


def test_an_error_of_a_mod_answers_the_message(home: Path) -> None:
    def answer(fab: Any, run: Any, task_id: int, asked: Message, before: Context) -> tuple[Message, Context]:
        reply = Message(RecordDict(), reply_to=asked)
        return Message(Error(2, "the mod expects one ArrayRecord"), reply_to=reply), before

    reply = replied_to("reply", answer, version_of(home, 1))
    assert reply.error.reason == "the mod expects one ArrayRecord"
    assert reply.metadata.src_node_id == message("reply").metadata.dst_node_id


def replied_to(do: str, answer: Any, bundle: Any) -> Any:
    """Return the reply that a node would send to a message."""
    state, store = node_state(*bundle)
    asked = message(do)
    importlib.import_module(LOOP)._insert_message(asked, state, store)
    answer_next(state, store, answer)
    (reply,) = state.get_messages(is_reply=True)
    return reply


@pytest.mark.parametrize(
    ("do", "kind", "text"), [("raise", "ValueError in ", "a reason"), ("exit", "SystemExit in ", "SystemExit: 5")]
)
def test_of_what_an_app_raises_the_server_is_told_kind_and_place_and_its_own_log_the_text(
    answer: Any, home: Path, do: str, kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = replied_to(do, answer, version_of(home, 1))
    assert reply.error.reason.startswith(kind)
    assert "what it says stays in this client's own log" in reply.error.reason
    assert text not in reply.error.reason
    assert str(home) not in reply.error.reason
    assert text in caplog.text


def test_an_app_may_say_in_words_what_the_server_is_told(answer: Any, home: Path) -> None:
    files = {"tried_app.py": APP.replace("VERSION", "1").replace('ValueError("a reason")', "Telling()") + TELLING}
    reply = replied_to("raise", answer, bundle_of(home, "tried_app:app", files))
    assert reply.error.reason == "the scanner is off"


@pytest.mark.parametrize("kind", ["query", "evaluate"])
def test_an_app_without_a_handler_says_so_as_flower_does(answer: Any, home: Path, kind: str) -> None:
    state, store = node_state(*version_of(home, 1))
    asked = message("reply")
    asked.metadata.message_type = kind
    importlib.import_module(LOOP)._insert_message(asked, state, store)
    answer_next(state, store, answer)
    (reply,) = state.get_messages(is_reply=True)
    assert f"No {kind} function registered with name 'default'" in reply.error.reason


# In Flower's loop ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("do", "kind"), [("mend", "FairbloomError"), ("raise", "ValueError")])
def test_an_error_that_was_not_written_for_the_server_is_told_by_kind_and_place(
    answer: Any, home: Path, do: str, kind: str
) -> None:
    state, store = node_state(*version_of(home, 1))
    importlib.import_module(LOOP)._insert_message(message(do), state, store)
    answer_next(state, store, answer)
    (reply,) = state.get_messages(is_reply=True)
    assert reply.error.code == 2
    assert reply.error.reason.startswith(f"{kind} in tried_app.py, line ")


def test_a_message_that_a_stopped_run_left_half_received_is_dropped(home: Path) -> None:
    fab, run = version_of(home, 1)
    state, store = node_state(fab, run)
    torn, whole = message("reply"), message("reply")
    torn.metadata.__dict__["_message_id"] = torn.object_id
    store.preregister(1, get_object_tree(torn))
    state.store_message(torn)
    whole.content["config"]["do"] = "reply"
    whole.content["config"]["round"] = 2
    importlib.import_module(LOOP)._insert_message(whole, state, store)

    answer_next(state, store, Resident(Unpacked()))

    (reply,) = state.get_messages(is_reply=True)
    assert reply.metadata.reply_to_message_id == whole.metadata.message_id
    assert not reply.has_error()
    assert [*state.msg_store] == [whole.metadata.message_id, reply.metadata.message_id]
    assert store.get(torn.metadata.message_id) is None

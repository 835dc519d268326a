"""How a client's app is called for a message, in a process that keeps it."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict

from fairbloom.deploy.device.bundles import Installed
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.flower.device import app_process
from fairbloom.deploy.flower.device.messages import Answer, Task
from fairbloom.deploy.flower.device.worker import CrashedError, Worker
from fairbloom.errors import FairbloomError
from fairbloom.flower import deserialize, identify

from .apps import APP, NODE, bundle_of, message, reply_of, task_of, version_of

TELLING = """

class Telling(Exception):
    reportable = "the scanner is off"
"""


@pytest.fixture
def answer(home: Path) -> Callable[[Task], Answer]:
    """Answers tasks by the app that is installed."""
    identify(run_id=1, node_id=2, task_id=0)
    return partial(app_process.answer, Installed("tried_app:app"), NODE)


def test_a_message_is_answered_and_the_state_kept(answer: Any, home: Path) -> None:
    first = answer(task_of(version_of(home, 7), message("reply")))
    reply = reply_of(first)
    assert reply.content["metrics"]["version"] == 7
    assert reply.content["metrics"]["state-dir"] == len("/own")  # this device's word counts for its own disk
    assert deserialize(first.state)["seen"]["calls"] == 1
    assert reply.metadata.src_node_id == 2


def test_a_state_that_stays_as_it_was_is_not_sent_again(answer: Any, home: Path) -> None:
    bundle = version_of(home, 7)
    state = deserialize(answer(task_of(bundle, message("reply"))).state)
    sys.modules["tried_app"].__dict__["calls"] = 0
    assert answer(task_of(bundle, message("reply"), state)).state is None


def test_the_app_stays_loaded(answer: Any, home: Path) -> None:
    bundle = version_of(home, 1)
    replies = [reply_of(answer(task_of(bundle, message("reply")))) for _ in range(2)]
    assert [reply.content["metrics"]["calls"] for reply in replies] == [1, 2]


def test_what_the_app_raises_leaves_the_state(answer: Any, home: Path) -> None:
    failed = answer(task_of(version_of(home, 1), message("raise")))
    assert reply_of(failed).error.code == 2
    assert failed.state is None


@pytest.mark.slow
def test_a_message_that_ends_a_kept_app_three_times_is_given_up(home: Path) -> None:
    worker = Worker(ClientSettings(superlink="a:1", insecure=True, app="tried_app:app", state_dir="/own"))
    bundle = version_of(home, 1)
    try:
        with pytest.raises(CrashedError, match="ended 3 times without a reply: killed by SIGSEGV"):
            worker.answer(task_of(bundle, message("crash")), "1/one")
        reply = reply_of(worker.answer(task_of(bundle, message("reply")), "1/two"))
        assert reply.content["metrics"]["version"] == 1
    finally:
        worker.end()


@pytest.mark.parametrize(("error", "traceback"), [(FairbloomError("no such partition"), False), (KeyError("x"), True)])
def test_what_a_user_can_mend_has_no_traceback_on_the_device(
    home: Path, error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def installed(*given: Any) -> Any:
        raise error

    reply = reply_of(app_process.answer(installed, NODE, task_of(version_of(home, 1), message("reply"))))
    assert reply.error.reason.startswith(f"{type(error).__name__} in test_answers.py, line ")
    assert f"the client app raised {error}" in caplog.text
    assert f"answered with error 2: {reply.error.reason}" in caplog.text
    assert ("Traceback" in caplog.text) is traceback


def test_an_error_of_a_mod_answers_the_message(home: Path) -> None:
    def app(message: Message, context: Context) -> Message:
        reply = Message(RecordDict(), reply_to=message)
        return Message(Error(2, "the mod expects one ArrayRecord"), reply_to=reply)

    asked = message("reply")
    reply = reply_of(app_process.answer(lambda *given: (app, {}), NODE, task_of(version_of(home, 1), asked)))
    assert reply.error.reason == "the mod expects one ArrayRecord"
    assert reply.metadata.src_node_id == asked.metadata.dst_node_id
    assert reply.metadata.reply_to_message_id == asked.metadata.message_id


@pytest.mark.parametrize(
    ("do", "kind", "text"),
    [
        ("raise", "ValueError in ", "a reason"),
        ("mend", "FairbloomError in ", "shares = 3: lower it"),
        ("exit", "SystemExit in ", "SystemExit: 5"),
    ],
)
def test_of_what_an_app_raises_the_server_is_told_kind_and_place_and_its_own_log_the_text(
    answer: Any, home: Path, do: str, kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = reply_of(answer(task_of(version_of(home, 1), message(do))))
    assert reply.error.reason.startswith(kind)
    assert "what it says stays in this client's own log" in reply.error.reason
    assert text not in reply.error.reason
    assert str(home) not in reply.error.reason
    assert text in caplog.text


def test_an_app_may_say_in_words_what_the_server_is_told(answer: Any, home: Path) -> None:
    files = {"tried_app.py": APP.replace("VERSION", "1").replace('ValueError("a reason")', "Telling()") + TELLING}
    reply = reply_of(answer(task_of(bundle_of(home, "tried_app:app", files), message("raise"))))
    assert reply.error.reason == "the scanner is off"


@pytest.mark.parametrize("kind", ["query", "evaluate"])
def test_an_app_without_a_handler_says_so_as_flower_does(answer: Any, home: Path, kind: str) -> None:
    reply = reply_of(answer(task_of(version_of(home, 1), message("reply", kind))))
    assert f"No {kind} function registered with name 'default'" in reply.error.reason

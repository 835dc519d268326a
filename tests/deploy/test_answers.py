"""Calls of a client's app for messages, in a process that keeps the app loaded.

Large content goes from process to process of one machine in a file without a name.
"""

import errno
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import FileIO
from mmap import mmap
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict

from fairbloom.client.guard.log_files import read_entries
from fairbloom.deploy.device.accepted import Installed
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet import app_process
from fairbloom.deploy.fleet.connections import list_open_files
from fairbloom.deploy.fleet.content import MEMORY_FILE_BYTES, SMALL_BYTES, open_on_disk, write
from fairbloom.deploy.fleet.messages import Buffer
from fairbloom.deploy.fleet.passing import Answer, PassedTask, receive, send
from fairbloom.deploy.fleet.worker import CrashedError, Worker
from fairbloom.errors import FairbloomError
from fairbloom.recorddict import deserialize
from fairbloom.system import retry

from .apps import APP, NODE, RUN, content_of, task_of, write_app, write_version

TELLING = """

class Telling(Exception):
    reportable = "the scanner is off"
"""


@pytest.fixture
def answer(home: Path) -> Callable[[PassedTask], Answer]:
    return partial(app_process.answer, Installed("tried_app:app"), NODE)


def test_a_message_is_answered_and_the_state_kept(answer: Any, home: Path) -> None:
    write_version(home, 7)
    first = answer(task_of("reply"))
    content = content_of(first)
    assert content["metrics"]["version"] == 7
    # the device's own value wins for its files
    assert content["metrics"]["state-dir"] == len("/own")
    assert deserialize(first.state)["seen"]["calls"] == 1


def test_a_state_that_stays_as_it_was_is_not_sent_again(answer: Any, home: Path) -> None:
    write_version(home, 7)
    state = answer(task_of("reply")).state
    sys.modules["tried_app"].__dict__["calls"] = 0
    assert answer(task_of("reply", state=state)).state is None


def test_the_app_stays_loaded(answer: Any, home: Path) -> None:
    write_version(home, 1)
    assert [content_of(answer(task_of("reply")))["metrics"]["calls"] for _ in range(2)] == [1, 2]


def test_an_owners_own_app_is_in_the_owners_log(home: Path) -> None:
    write_version(home, 7)
    node = {"state-dir": str(home)}
    for do in ("reply", "raise", "exit"):
        app_process.answer(Installed("tried_app:app"), node, task_of(do))
    app_process.answer(
        Installed("tried_app:app", distribution=("tried", "1")),
        node,
        task_of("reply", run=replace(RUN, distribution="other")),
    )
    sent, *refused = read_entries(home)
    assert sent["message"] == "m"
    assert sent["sent"] == {"metrics": {"calls": 1, "version": 7, "state-dir": len(str(home))}}
    words = [each["refused"].partition(" in ")[0] for each in refused]
    assert words[:2] == ["ValueError", "SystemExit"]
    assert words[2].startswith("the run is of other")


def test_a_run_is_accepted_while_writes_are_tried_again(
    answer: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device notes of a run's schema and questions is written before the app is called."""
    write_version(home, 1)
    accept = Installed.accept
    left = list[float]()

    def watch(*arguments: Any) -> Any:
        left.append(retry.UNTIL.get() - time.monotonic())
        return accept(*arguments)

    monkeypatch.setattr(Installed, "accept", watch)
    assert content_of(answer(task_of("reply")))
    assert left[0] > 0.0
    assert retry.UNTIL.get() == -math.inf


def test_what_the_app_raises_leaves_the_state(answer: Any, home: Path) -> None:
    write_version(home, 1)
    failed = answer(task_of("raise"))
    assert (failed.code, failed.state) == (2, None)


@pytest.mark.slow
def test_a_message_that_ends_a_kept_app_three_times_is_given_up(
    home: Path, own_client: ClientSettings
) -> None:
    worker = Worker(own_client)
    write_version(home, 1)
    try:
        with pytest.raises(CrashedError, match="ended 3 times without a reply: killed by SIGSEGV"):
            worker.answer(task_of("crash"), "1/one")
        assert content_of(worker.answer(task_of("reply"), "1/two"))["metrics"]["version"] == 1
    finally:
        worker.end()


@pytest.mark.parametrize(
    ("error", "traceback"), [(FairbloomError("no such partition"), False), (KeyError("x"), True)]
)
def test_what_a_user_can_mend_has_no_traceback_on_the_device(
    home: Path, error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Installed):
        def accept(self, *given: Any) -> Any:
            raise error

    reply = app_process.answer(Failing("tried_app:app"), NODE, task_of("reply"))
    assert reply.reason.startswith(f"{type(error).__name__} in test_answers.py, line ")
    assert f"the client app raised {error}" in caplog.text
    assert ("Traceback" in caplog.text) is traceback


def test_an_error_of_a_mod_answers_the_message(home: Path) -> None:
    def app(message: Message, context: Context) -> Message:
        return Message(
            Error(2, "the mod expects one ArrayRecord"),
            reply_to=Message(RecordDict(), reply_to=message),
        )

    class Modded(Installed):
        def accept(self, *given: Any) -> Any:
            return app, {}

    reply = app_process.answer(Modded("tried_app:app"), NODE, task_of("reply"))
    assert (reply.code, reply.reason) == (2, "the mod expects one ArrayRecord")


@pytest.mark.parametrize(
    ("do", "kind", "text"),
    [
        ("raise", "ValueError in ", "a reason"),
        ("mend", "FairbloomError in ", "shares = 3: lower it"),
        ("exit", "SystemExit in ", "SystemExit: 5"),
    ],
)
def test_the_server_learns_an_errors_kind_and_place_only(
    answer: Any, home: Path, do: str, kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_version(home, 1)
    reason = answer(task_of(do)).reason
    assert reason.startswith(kind)
    assert "what it says stays in this client's own log" in reason
    assert text not in reason
    assert str(home) not in reason
    assert text in caplog.text


def test_an_app_may_choose_what_the_server_learns(answer: Any, home: Path) -> None:
    text = APP.replace("VERSION", "1").replace('ValueError("a reason")', "Telling()") + TELLING
    write_app(home, {"tried_app.py": text})
    assert answer(task_of("raise")).reason == "the scanner is off"


@pytest.mark.parametrize("kind", ["query", "evaluate"])
def test_an_app_without_a_handler_says_so_as_flower_does(
    answer: Any, home: Path, kind: str
) -> None:
    write_version(home, 1)
    assert (
        f"No {kind} function registered with name 'default'"
        in answer(task_of("reply", kind)).reason
    )


LARGE: list[Buffer] = [b"a" * SMALL_BYTES, memoryview(b"b")]


def passed(pieces: Sequence[Buffer], folder: Path) -> tuple[Any, Buffer]:
    """Return what another end of a pipe receives."""
    ours, theirs = Pipe()
    with ours, theirs:
        sender = threading.Thread(
            target=send, args=(ours, "head", [write(pieces, lambda: open_on_disk(str(folder)))])
        )
        sender.start()
        head, (content,) = receive(theirs)
        sender.join()
    return head, content.map()


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES])
def test_small_content_goes_through_the_pipe(size: int, tmp_path: Path) -> None:
    half = size // 2
    head, content = passed([b"x" * half, b"y" * (size - half)], tmp_path)
    assert (head, content) == ("head", b"x" * half + b"y" * (size - half))


def test_large_content_is_mapped_and_its_file_closed(tmp_path: Path) -> None:
    before = list_open_files()
    head, content = passed(LARGE, tmp_path)
    assert (head, bytes(content)) == ("head", b"".join(LARGE))
    assert isinstance(content, memoryview)
    assert isinstance(content.obj, mmap)
    assert content.readonly
    # the map keeps a file of its own open until the content is freed
    del content
    assert len(list_open_files()) == len(before)


def test_content_beyond_the_limit_rests_on_the_disk(tmp_path: Path) -> None:
    opened = list[str]()

    def note() -> FileIO:
        opened.append("opened")
        return open_on_disk(str(tmp_path))

    limit = SMALL_BYTES + 1
    assert bytes(write(LARGE, note, limit).map()) == b"".join(LARGE)
    assert opened == []  # exactly the limit
    assert bytes(write([*LARGE, b"c"], note, limit).map()) == b"".join(LARGE) + b"c"
    assert opened == ["opened"]
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(FileIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(bytes(data[:600]))

    before = len(list_open_files())
    content = write(LARGE, lambda: Full(tmp_path / "file", "w"), 0)
    assert bytes(content.map()) == b"".join(LARGE)
    assert [record.message for record in caplog.records] == [
        f"a message of {SMALL_BYTES + 1} bytes stays in memory only, as no file could be written:"
        " No space left on device"
    ]
    del content
    assert len(list_open_files()) == before


def test_a_system_without_memory_files_uses_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert passed(LARGE, tmp_path)[1] == b"".join(LARGE)


def test_cycles_are_freed_each_time_and_frozen_once() -> None:
    program = """
import gc, weakref
from fairbloom.deploy.processes import free_cycles

class Content: pass

count, gc.get_freeze_count = gc.get_freeze_count, None  # it takes 30 ms where PyTorch is loaded
counts = []
for _ in range(3):
    content = Content()
    content.itself = content
    gone = weakref.ref(content)
    del content
    free_cycles()
    assert gone() is None
    counts.append(count())
assert counts[0] >= counts[1] >= counts[2] > 1000, counts
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_passed_is_copied_into_the_file_only(tmp_path: Path) -> None:
    pieces = [bytes(1 << 20) for _ in range(8)]
    assert sum(map(len, pieces)) < MEMORY_FILE_BYTES
    tracemalloc.start()
    _, content = passed(pieces, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(content) == 8 << 20
    assert peak < 1 << 20

"""A client while it is connected: its worker's beginning and end, its states, its waits, and that it opens no port."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import MetricRecord, RecordDict
from flwr.common.serde import message_to_proto, run_to_proto
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.contexts import MOST_RUNS, Contexts
from fairbloom.deploy.flower.device import session as session_module
from fairbloom.deploy.flower.device.fleet import ClosedError, RefusedError, RunOverError, UnknownNodeError
from fairbloom.deploy.flower.device.messages import Answer, Task, pack
from fairbloom.deploy.flower.device.session import LONGEST_SECONDS, SHORTEST_SECONDS, PollPause, Session
from fairbloom.deploy.flower.device.worker import CrashedError, DroppedError
from fairbloom.flower import deserialize, identify, serialize

from .apps import message, reply_of, run_of


class Superlink:
    """Stands for a node's connection: hands out these messages, and keeps the replies."""

    def __init__(self, *asked: Any) -> None:
        self.node, self.asked, self.sent, self.over = Node(node_id=2), list(asked), list[Any](), set[int]()
        self.bundles = {1: b"one", 2: b"two", 3: b"one"}
        self.refusal: Exception | None = None

    def pull(self) -> Any:
        if not self.asked:
            raise ClosedError
        found = self.asked.pop(0)
        return found and (message_to_proto(found), get_object_tree(found), {})

    def get_run(self, run_id: int) -> Any:
        if run_id in self.over:
            raise RunOverError
        run = run_of(self.bundles[run_id])
        run.run_id = run.series_id = run_id
        return run_to_proto(run)

    def get_bundle(self, run: Any) -> bytes:
        return self.bundles[run.run_id]

    def receive(self, run_id: int, message_id: str, tree: Any) -> dict[str, bytes]:
        return {}

    def push(self, head: bytes, tree: bytes, parts: dict[str, bytes], seconds: float) -> int:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.sent.append(reply_of(Answer(head, tree, parts)))
        return 0

    def wait(self, seconds: float) -> bool:
        return False


class Counting:
    """Stands for a worker whose app counts its messages in its state."""

    def __init__(self) -> None:
        self.runs, self.working, self.ended, self.fails = False, "", 0, list[Exception]()

    def answer(self, task: Task, name: str) -> Answer:
        if self.fails:
            raise self.fails.pop(0)
        self.runs = True
        state = deserialize(task.state) if task.state else RecordDict({"seen": MetricRecord({"calls": 0})})
        state["seen"]["calls"] = int(state["seen"]["calls"]) + 1
        asked = message("reply")
        return pack(
            type(asked)(RecordDict({"seen": MetricRecord(dict(state["seen"]))}), reply_to=asked), serialize(state)
        )

    def drop(self, name: str, reason: str) -> None:
        raise AssertionError(reason)

    def end(self) -> None:
        self.ended += self.runs
        self.runs = False


def asked(run_id: int = 1, number: int = 0) -> Any:
    found = message(f"reply {number}")
    found.metadata.__dict__["_run_id"] = run_id
    found.metadata.__dict__["_message_id"] = found.object_id
    return found


def session_of(superlink: Any, worker: Any, contexts: Contexts) -> Session:
    return Session(superlink, worker, contexts)


def served(superlink: Any, worker: Any, contexts: Contexts | None = None) -> list[Any]:
    """Let a client answer all messages; return the replies."""
    identify(run_id=1, node_id=2, task_id=0)
    with pytest.raises(ClosedError):
        session_of(superlink, worker, contexts or Contexts("")).serve()
    return list(superlink.sent)


def calls(replies: list[Any]) -> list[int]:
    return [reply.content["seen"]["calls"] for reply in replies]


# States -------------------------------------------------------------------------------------------------------------


def test_a_state_is_kept_from_message_to_message_and_each_run_has_its_own() -> None:
    superlink = Superlink(asked(1), asked(1), asked(2), asked(1))
    assert calls(served(superlink, Counting())) == [1, 2, 1, 3]


@pytest.mark.parametrize("folder", ["state", ""])
def test_a_state_outlives_a_restart_where_there_is_a_folder(folder: str, tmp_path: Path) -> None:
    place = str(tmp_path / folder) if folder else ""
    seen = [calls(served(Superlink(asked(), asked()), Counting(), Contexts(place))) for _ in range(2)]
    assert seen == [[1, 2], [3, 4] if folder else [1, 2]]


def test_states_of_the_last_runs_are_kept_and_a_damaged_one_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for kept in (Contexts(str(tmp_path)), Contexts("")):
        for run in range(MOST_RUNS + 2):
            kept.save(run, b"state")
            time.sleep(0.01)
        assert [bool(kept.load(run)) for run in range(MOST_RUNS + 2)] == [False, False, *[True] * MOST_RUNS]
    file = tmp_path / "contexts" / "4"
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:-1])
    assert Contexts(str(tmp_path)).load(4) == b""
    assert f"{file} is damaged" in caplog.text


# The worker ---------------------------------------------------------------------------------------------------------


def test_a_run_with_another_bundle_has_another_worker_and_one_with_the_same_has_not() -> None:
    worker = Counting()
    served(Superlink(asked(1), asked(3), asked(2), asked(2)), worker)
    assert worker.ended == 1


def test_an_idle_worker_is_ended_once_its_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "IDLE_SECONDS", 0.0)
    worker, superlink = Counting(), Superlink(asked(), None, None)
    served(superlink, worker)
    assert (worker.runs, worker.ended) == (True, 0)
    superlink.asked, superlink.over = [None, None], {1}
    session = session_of(superlink, worker, Contexts(""))
    session._run = run_to_proto(run_of(b"one"))
    with pytest.raises(ClosedError):
        session.serve()
    assert (worker.runs, worker.ended) == (False, 1)


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (DroppedError("its time is over"), 2, "the client has dropped this work: its time is over"),
        (CrashedError("it ended 3 times: killed by SIGKILL"), 8, "it ended 3 times: killed by SIGKILL"),
    ],
)
def test_work_that_came_to_nothing_is_one_error_and_the_next_message_is_answered(
    failure: Exception, code: int, words: str
) -> None:
    worker = Counting()
    worker.fails = [failure]
    first, second = asked(number=1), asked(number=2)
    failed, good = served(Superlink(first, second), worker)
    assert (failed.error.code, failed.error.reason) == (code, words)
    assert failed.metadata.reply_to_message_id == first.metadata.message_id
    assert calls([good]) == [1]


@pytest.mark.parametrize("refusal", [RefusedError("FAILED_PRECONDITION: [code: 77] too large"), RunOverError()])
def test_a_refused_reply_is_one_line_and_the_next_message_is_answered(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    superlink = Superlink(asked(), asked())
    superlink.refusal = refusal
    assert len(served(superlink, Counting())) == 1
    assert "Traceback" not in caplog.text
    if str(refusal):
        assert str(refusal) in caplog.text


def test_a_node_that_is_no_longer_known_ends_its_connection() -> None:
    superlink = Superlink(asked(), asked())
    superlink.refusal = UnknownNodeError("UNAUTHENTICATED: Invalid node ID")
    with pytest.raises(UnknownNodeError):
        session_of(superlink, Counting(), Contexts("")).serve()


# No port ------------------------------------------------------------------------------------------------------------


def listening(pid: int) -> list[str]:
    """Return the local addresses on which a process listens."""
    held = set[str]()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as files are that are being read
            held.add(str(file.readlink()))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


@pytest.mark.slow
def test_a_client_serves_no_api_on_its_device(tmp_path: Path) -> None:
    """Whoever could connect to one might take a message and answer it in the client's name."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = ClientSettings(superlink=address, insecure=True, state_dir=str(tmp_path))
        node = subprocess.Popen([sys.executable, "-m", "fairbloom.deploy.device", json.dumps(asdict(client))])
        try:
            silent.settimeout(120)
            silent.accept()[0].close()
            with silent.accept()[0]:
                assert listening(node.pid) == []
        finally:
            node.kill()
            node.wait()


# Waits --------------------------------------------------------------------------------------------------------------


def test_a_busy_node_waits_little_and_an_idle_one_never_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pace = PollPause()
    assert pace.seconds == SHORTEST_SECONDS
    now[0] = 4.5
    assert pace.seconds == pytest.approx(0.45)
    now[0] = 3600.0
    assert pace.seconds == LONGEST_SECONDS
    pace.worked()
    assert pace.seconds == SHORTEST_SECONDS


def test_a_refused_heartbeat_ends_connection_and_work() -> None:
    ended, closed = list[str](), threading.Event()

    def beat(working: str) -> Any:
        raise UnknownNodeError("UNAUTHENTICATED: the key was revoked")

    fleet: Any = SimpleNamespace(
        **{"beat": beat, "close": closed.set, "wait": lambda seconds: closed.is_set(), "node": Node(node_id=2)}
    )
    fleet.connect, fleet.pull = lambda: None, lambda: closed.wait() and _closed()
    worker: Any = SimpleNamespace(working="7/a", drop=lambda name, reason: ended.append(name))
    session = session_of(fleet, worker, Contexts(""))
    session.connect()
    with pytest.raises(RefusedError, match="the heartbeat was refused: UNAUTHENTICATED: the key was revoked"):
        session.serve()
    assert ended in ([], ["7/a"])


def _closed() -> None:
    raise ClosedError

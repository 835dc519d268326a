"""A run's grid and a device's session: they send lost messages again and compute each once."""

import logging
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fairbloom.client.guard.log_files import AuditLog
from fairbloom.deploy.fleet import grid as grids
from fairbloom.deploy.fleet.calls import Received
from fairbloom.deploy.fleet.content import SMALL_BYTES, Content
from fairbloom.deploy.fleet.grid import UNREADABLE_REPLY, RunGrid, group_of
from fairbloom.deploy.fleet.mailbox import Collected, Envelope
from fairbloom.deploy.fleet.messages import node_id_of
from fairbloom.deploy.fleet.passing import ANSWER_FILE, Answer, Task, receive, send
from fairbloom.deploy.fleet.session import (
    KEPT_RUNS,
    Contexts,
    KeptReply,
    Session,
    load_session,
)
from fairbloom.deploy.fleet.wire_pb2 import Head, Taken
from fairbloom.deploy.fleet.worker import DroppedError
from fairbloom.protocol.version import PROTOCOL
from fairbloom.recorddict import serialize
from fairbloom.server import polling

NODE = node_id_of("a")


class Server:
    """Answers the requests of a run's process in place of the server."""

    def __init__(self) -> None:
        self.ours, theirs = Pipe()
        self.grid = RunGrid(theirs, 7, "")
        self.sent: list[Envelope] = []
        self.full = 0
        self.replies = list[tuple[Collected, bytes]]()
        self.online = [(NODE, "a")]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                (name, arguments), contents = receive(self.ours)
                answer, given = self._answer(name, arguments, contents)
                send(self.ours, answer, given)
            # the test is over; TypeError, because the handle of a closed pipe is None
            except (EOFError, OSError, TypeError):
                return

    def _answer(self, name: str, arguments: tuple[Any, ...], contents: list[Content]) -> Any:
        if name == "store" and self.full:
            self.full -= 1
            return ("", "No space left on device"), []
        if name == "store":
            return (contents[0].digest().hex(), ""), []
        if name == "send":
            self.sent += arguments[0]
        if name == "collect":
            found = [each for each in self.replies if each[0].id in arguments[0]]
            self.replies = []
            return ([each for each, _ in found], False), [Content(data) for _, data in found]
        return {"nodes": self.online, "names": {NODE: "a"}}.get(name), []


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.ours.close()


def message(kind: str = MessageType.TRAIN, number: int = 1, node: int = NODE) -> Message:
    config = ConfigRecord({"server-round": number} if number else {})
    return Message(RecordDict({"arrays": ArrayRecord(), "config": config}), node, kind)


def test_ids_are_the_same_in_each_process_of_a_run_that_saves(server: Server) -> None:
    other = Server()
    for each in (server, other):
        each.grid.save(0)
    assert server.grid.push_messages([message()]) == other.grid.push_messages([message()])
    cases = [
        (message(), True),
        (message(number=2), True),
        (message(MessageType.EVALUATE), True),
        (message(number=0), False),
        (message(MessageType.QUERY), False),
    ]
    assert len({server.grid.push_messages([each])[0] for each, _ in cases}) == 5
    assert [address.kept for address in server.sent[1:]] == [kept for _, kept in cases]
    twice = [server.grid.push_messages([message(MessageType.QUERY)])[0] for _ in range(2)]
    assert twice[0] != twice[1]


def test_ids_are_new_in_a_run_that_saves_nothing(server: Server) -> None:
    ids = server.grid.push_messages([message(), message(), message(node=5)])
    assert ids[0] != ids[1]
    assert ids[2] == ""  # this client is not enrolled
    assert [address.kept for address in server.sent] == [False, False]


def test_equal_contents_are_made_once_and_others_are_not() -> None:
    model = ArrayRecord({"w": Array(np.ones(3))})
    other = ArrayRecord({"w": Array(np.zeros(3))})

    def content(arrays: ArrayRecord, value: int) -> RecordDict:
        return RecordDict({"arrays": arrays, "config": ConfigRecord({"value": value})})

    contents = [content(model, 1), content(model, 1), content(model, 2), content(other, 1)]
    made = grids.serialize_once(contents)
    assert [b"".join(each) for each in made] == [serialize(each) for each in contents]
    assert made[0] is made[1]
    assert len({*map(id, made)}) == 3


def test_replies_are_flowers_messages(server: Server) -> None:
    ids = server.grid.push_messages([message(), message(), message()])
    good = serialize(RecordDict({"config": ConfigRecord({"x": 1})}))
    server.replies = [
        (Collected(ids[0]), good),
        (Collected(ids[1]), b"\xff\xff"),
        (Collected(ids[2], 8, "it crashed"), b""),
    ]
    server.replies.append((Collected("unknown"), good))
    replies = server.grid.pull_messages([*ids, "unknown"])
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert {reply.metadata.src_node_id for reply in replies} == {NODE}
    assert replies[0].content.config_records["config"]["x"] == 1
    assert [reply.error.code for reply in replies[1:]] == [UNREADABLE_REPLY, 8]


def test_a_full_disk_of_the_server_is_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "AGAIN_SECONDS", 0.01)
    server.full = 3
    assert server.grid.push_messages([message()]) != [""]
    assert len(server.sent) == 1


def test_a_client_that_is_away_too_long_ends_as_an_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "GRACE_SECONDS", 0.1)
    server.online = []
    (reply,) = server.grid.send_and_receive([message()])
    assert reply.error.code == 5  # Flower's code for a node that is not available
    server.online = [(NODE, "a")]  # online, but it does not answer
    assert server.grid.send_and_receive([message()], timeout=0.3) == []


# The device ---------------------------------------------------------------------------------------


class EndedError(Exception):
    """No more messages come."""


class FakeCalls:
    """Calls that return given messages and record replies."""

    def __init__(self, *messages: Received) -> None:
        self.messages = list(messages)
        self.replies = list[tuple[str, bytes, int]]()
        self.known = list[str]()

    def connect(self) -> None:
        """Connect at once."""

    def next(self, settings: str) -> Received:
        self.known.append(settings)
        if not self.messages:
            raise EndedError
        return self.messages.pop(0)

    def reply(self, head: Head, content: Content) -> Taken:
        self.replies.append((head.id, bytes(content.map()), head.code))
        return Taken()


class FakeWorker:
    """A worker that answers by a function of the task."""

    runs = False

    def __init__(self, answer: Callable[[Task], Answer]) -> None:
        self._answer = answer
        self.asked = list[Task]()

    def answer(self, task: Task, name: str) -> Answer:
        self.asked.append(task)
        return self._answer(task)


def received(
    id: str, data: bytes = b"model", protocol: int = PROTOCOL, settings: str = ""
) -> Received:
    return Received(
        Head(id=id, run=7, type="train", protocol=protocol, settings=settings), Content(data)
    )


def serve(state: Path, worker: Any, *messages: Received) -> FakeCalls:
    """Have a restarted device answer messages; return the calls that it made."""
    calls: Any = FakeCalls(*messages)
    place = str(state)
    files = (Contexts(place), KeptReply(place), AuditLog(state))
    with pytest.raises(EndedError):
        Session("a", calls, worker, *files).serve()
    made: FakeCalls = calls
    return made


def test_a_restarted_device_gives_its_last_reply_again(tmp_path: Path) -> None:
    worker = FakeWorker(lambda task: Answer(content=Content(bytes(task.content.map())[::-1])))
    assert serve(tmp_path, worker, received("1")).replies == [("1", b"ledom", 0)]
    calls = serve(tmp_path, worker, received("1"), received("2", b"other"))
    assert calls.replies == [("1", b"ledom", 0), ("2", b"rehto", 0)]
    assert [task.content.map() for task in worker.asked] == [b"model", b"other"]
    (tmp_path / "reply").write_bytes(b"damaged")
    assert serve(tmp_path, worker, received("2", b"other")).replies == [("2", b"rehto", 0)]
    assert len(worker.asked) == 3


def test_a_large_reply_keeps_the_file_that_the_worker_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytes(range(256)) * (SMALL_BYTES // 128)

    def answer(task: Task) -> Answer:
        (tmp_path / ANSWER_FILE).write_bytes(data)
        return Answer(content=Content(file=FileIO(tmp_path / ANSWER_FILE)))

    worker = FakeWorker(answer)
    assert serve(tmp_path, worker, received("1")).replies == [("1", data, 0)]
    assert {*tmp_path.glob("*eply*"), *tmp_path.glob(ANSWER_FILE)} == {
        tmp_path / "reply",
        tmp_path / "reply-content",
    }
    assert (tmp_path / "reply").stat().st_size < SMALL_BYTES
    assert serve(tmp_path, worker, received("1")).replies == [("1", data, 0)]
    assert len(worker.asked) == 1
    (tmp_path / "reply-content").write_bytes(data[::-1])
    assert serve(tmp_path, worker, received("1")).replies == [("1", data, 0)]
    assert len(worker.asked) == 2
    assert f"{tmp_path / 'reply-content'} is damaged: the last reply is lost" in caplog.text


def test_settings_are_kept_until_others_come(tmp_path: Path) -> None:
    worker = FakeWorker(lambda task: Answer(content=Content(task.settings.encode())))
    calls = serve(tmp_path, worker, received("1", settings="{}"), received("2"))
    assert [data for _, data, _ in calls.replies] == [b"{}", b"{}"]
    assert calls.known[0] != calls.known[1] == calls.known[2]


def test_what_the_app_keeps_comes_with_the_next_message(tmp_path: Path) -> None:
    worker = FakeWorker(lambda task: Answer(state=task.state + b"x"))
    serve(tmp_path, worker, received("1"), received("2"))
    serve(tmp_path, worker, received("3"))
    assert [task.state for task in worker.asked] == [b"", b"x", b"xx"]


FOLDER = "0123456789abcdef"


def in_round(number: int, kind: str, run: int = 7, again: str = "") -> Received:
    """Return a message of a run folder; `again` makes it another message of the same work."""
    head = Head(
        id=f"{run}-{number}-{kind}{again}",
        run=run,
        type=kind,
        protocol=PROTOCOL,
        round=f"{FOLDER}/{number}",
    )
    return Received(head, Content(b"model"))


def counting(task: Task) -> Answer:
    """Count a training in the app's state; an evaluation leaves it unchanged."""
    if Head.FromString(task.head).type == "evaluate":
        return Answer(content=Content(task.state))
    return Answer(content=Content(task.state + b"x"), state=task.state + b"x")


def test_states_belong_to_the_run_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker(counting)
    kinds = ("train", "evaluate")
    serve(tmp_path, worker, *(in_round(n, kind) for n in (1, 2, 4) for kind in kinds))
    with caplog.at_level(logging.INFO, "flwr"):
        calls = serve(tmp_path, worker, *(in_round(n, kind, 8) for n in (5, 6) for kind in kinds))
    assert [len(data) for _, data, _ in calls.replies] == [4, 4, 5, 5]
    assert [words for words in caplog.messages if "the app's state" in words] == [
        f"the app's state is that after round 4 of run folder {FOLDER}"
    ]
    # in another folder, and in a run without one, the app begins without a state
    other = Received(Head(id="x", run=8, type="train", protocol=PROTOCOL), Content(b"model"))
    assert serve(tmp_path, worker, other).replies[0][1] == b"x"


@pytest.mark.parametrize(
    ("first", "repeated", "expected"),
    [
        ([(1, "train"), (2, "train")], [(2, "train")], [2]),
        ([(1, "train"), (2, "train"), (2, "evaluate")], [(2, "train"), (2, "evaluate")], [2, 2]),
        ([(1, "train"), (1, "evaluate")], [(1, "train"), (1, "evaluate"), (2, "train")], [1, 1, 2]),
        # the checkpoint of round 3 is damaged, and the run goes on after round 2
        ([(n, "train") for n in (1, 3, 4)], [(3, "train"), (4, "train")], [2, 3]),
    ],
)
def test_repeated_work_begins_with_the_state_before_it(
    tmp_path: Path,
    first: list[tuple[int | str, ...]],
    repeated: list[tuple[int | str, ...]],
    expected: list[int],
) -> None:
    state = tmp_path / str(len(list(tmp_path.iterdir())))
    worker = FakeWorker(counting)
    serve(state, worker, *(in_round(*each) for each in first))
    again = [in_round(*each, again="again") for each in repeated]
    assert [len(data) for _, data, _ in serve(state, worker, *again).replies] == expected


def test_a_device_keeps_the_states_of_a_few_runs(tmp_path: Path) -> None:
    worker = FakeWorker(counting)
    (tmp_path / "contexts").mkdir()
    (tmp_path / "contexts" / "5").touch()  # another program's
    serve(tmp_path, worker, *(in_round(n, "train") for n in range(1, 9)))
    assert {path.name for path in (tmp_path / "contexts" / FOLDER).iterdir()} == {
        *("6-0", "7-0", "8-0")
    }
    for run in range(20, 30):
        serve(
            tmp_path,
            worker,
            Received(Head(id=str(run), run=run, type="train", protocol=PROTOCOL), Content(b"")),
        )
    assert len(list((tmp_path / "contexts").glob("*/"))) == KEPT_RUNS


def test_a_damaged_state_is_named_and_an_earlier_one_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = FakeWorker(counting)
    serve(tmp_path, worker, in_round(1, "train"), in_round(2, "train"))
    file = tmp_path / "contexts" / FOLDER / "2-0"
    file.write_bytes(file.read_bytes()[:-1] + b"y")
    assert serve(tmp_path, worker, in_round(3, "train")).replies[0][1] == b"xx"
    assert "2-0 is damaged: an earlier state is taken" in caplog.text


def test_messages_of_a_run_folder_have_its_group() -> None:
    """The device reads the group: it opens no content."""
    config = ConfigRecord({"server-round": 3, "run-folder": FOLDER})
    assert group_of(RecordDict({"config": config}), 3) == f"{FOLDER}/3"
    assert group_of(RecordDict({"config": ConfigRecord({"server-round": 3})}), 3) == ""


def test_work_that_fails_is_answered_by_an_error(tmp_path: Path) -> None:
    def drop(task: Task) -> Answer:
        raise DroppedError("the run is over")

    assert serve(tmp_path, FakeWorker(drop), received("1")).replies == [("1", b"", 2)]
    newer = FakeWorker(lambda task: Answer([b"never"]))
    assert serve(tmp_path, newer, received("2", protocol=PROTOCOL + 1)).replies == [("2", b"", 2)]
    assert newer.asked == []


def test_a_state_folder_is_one_session(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, again, other = (
        load_session(str(folder)) for folder in (tmp_path, tmp_path, tmp_path / "other")
    )
    assert first == again != other

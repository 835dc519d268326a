"""A run's grid and a device's session: they send lost messages again and compute each once.

The server's runs and folder, without processes: orders are carried out or refused.
"""

import asyncio
import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import FileIO
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.guard.log_files import AuditLog
from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet import grid as grids, runs as module, session as sessions
from fairbloom.deploy.fleet.calls import Received
from fairbloom.deploy.fleet.content import SMALL_BYTES, Content, MemoryBudget
from fairbloom.deploy.fleet.daemon import Daemon, read_identity, renew_if_due
from fairbloom.deploy.fleet.enrolment import enroll, revoke
from fairbloom.deploy.fleet.faults import Faults
from fairbloom.deploy.fleet.federation import NOW, Federation, Now, read_now
from fairbloom.deploy.fleet.grid import UNREADABLE_REPLY, RunGrid, group_of
from fairbloom.deploy.fleet.mailbox import Collected, Envelope, Mailbox, Reply
from fairbloom.deploy.fleet.members import Members
from fairbloom.deploy.fleet.messages import Start, node_id_of
from fairbloom.deploy.fleet.passing import ANSWER_FILE, Answer, PassedTask, receive, send
from fairbloom.deploy.fleet.port import Port, PortDevice
from fairbloom.deploy.fleet.runs import DRAIN, MAX_RESTARTS, Order, RunFiles, Runs, submit
from fairbloom.deploy.fleet.session import KEPT_RUNS, Contexts, KeptReply, Session, count_start
from fairbloom.deploy.fleet.wire_pb2 import Head, Taken
from fairbloom.deploy.fleet.worker import CrashedError, DroppedError, OwnersLimitError
from fairbloom.protocol.version import PROTOCOL
from fairbloom.recorddict import serialize
from fairbloom.server import polling
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.system import retry
from fairbloom.system.versions import Point, Versions, write_sealed

NODE = node_id_of("a")
NAMES = {node_id_of(name): name for name in ("a", "b")}


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
        if name in ("send", "note_wait"):
            self.sent += arguments[0]
        if name == "owed":
            return arguments[0][:1], []
        if name == "collect":
            found = [each for each in self.replies if each[0].id in arguments[0]]
            self.replies = []
            return ([each for each, _ in found], False), [Content(data) for _, data in found]
        return {"nodes": self.online, "names": NAMES}.get(name), []


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


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xff", "UnusualError: it is damaged"),
        (b"\x0a\x00" * 19, "ValueError: more than 18 records, the limit for this message"),
    ],
)
def test_a_client_is_not_asked_after_three_unreadable_replies(
    server: Server, caplog: pytest.LogCaptureFixture, data: bytes, words: str
) -> None:
    for number in range(1, 5):
        ids = server.grid.push_messages([message(number=number, node=node) for node in NAMES])
        assert [id == "" for id in ids] == [False, number > 3]
        # an error is not unreadable
        answers = [(Collected(ids[0], 8, "it crashed"), b""), (Collected(ids[1]), data)]
        server.replies = answers[: 1 + (number < 4)]
        crashed, *refused = [reply.error for reply in server.grid.pull_messages(ids)]
        assert crashed.code == 8
        assert [error.code for error in refused] == [UNREADABLE_REPLY] * (number < 4)
        assert all(f"reply of client b cannot be read ({words}" in each.reason for each in refused)
        assert caplog.text.count("client b is not asked again in this run: 3") == (number > 2)
    assert [each.device for each in server.sent] == ["a", "b"] * 3 + ["a"]


@pytest.mark.parametrize(
    ("kind", "number", "arrays", "most"),
    [
        (MessageType.TRAIN, 1, (3,), 19),
        (MessageType.EVALUATE, 2, (3, 4), 23),
        ("train.personal", 1, (3,), 19),
        (MessageType.TRAIN, 0, (3,), grids.MAX_ARRAYS),
        (MessageType.TRAIN, 1, (), grids.MAX_ARRAYS),
        (MessageType.QUERY, 1, (3,), grids.MAX_ARRAYS),
    ],
)
def test_a_reply_may_have_16_arrays_more_than_were_sent(
    kind: str, number: int, arrays: tuple[int, ...], most: int
) -> None:
    asked = message(kind, number)
    for name, count in enumerate(arrays):
        asked.content[str(name)] = ArrayRecord(
            {str(each): Array(np.ones(1)) for each in range(count)}
        )
    assert grids.most_items(asked) == {
        "records": 18 + len(arrays),
        "arrays": most,
        "values": 50_000 + min(number, 1),
    }


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


def test_the_server_knows_which_messages_are_owed(server: Server) -> None:
    for grid in (server.grid, polling.PollingGrid(server.grid)):
        assert grid.find_owed(["1", "2"]) == ["1"]
    assert polling.PollingGrid(InProcessGrid(ClientApp(), {}, 1)).find_owed(["1", "2"]) == [
        "1",
        "2",
    ]


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

    def __init__(self, answer: Callable[[PassedTask], Answer]) -> None:
        self._answer = answer
        self.asked = list[PassedTask]()

    def answer(self, task: PassedTask, name: str) -> Answer:
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
    return calls


def test_a_restarted_device_gives_its_last_reply_again(tmp_path: Path) -> None:
    worker = FakeWorker(lambda task: Answer(content=Content(bytes(task.content.map())[::-1])))
    assert serve(tmp_path, worker, received("1")).replies == [("1", b"ledom", 0)]
    calls = serve(tmp_path, worker, received("1"), received("2", b"other"))
    assert calls.replies == [("1", b"ledom", 0), ("2", b"rehto", 0)]
    assert [task.content.map() for task in worker.asked] == [b"model", b"other"]
    (tmp_path / "reply").write_bytes(b"damaged")
    assert serve(tmp_path, worker, received("2", b"other")).replies == [("2", b"rehto", 0)]
    assert len(worker.asked) == 3


def test_a_full_disk_delays_an_answer_and_ends_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written: the app's state, and the log of a refused message."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.01)
    worker = FakeWorker(lambda task: Answer(content=Content(b"reply"), state=b"state"))
    refused = Received(received("2").head, Content(), "it is too large")
    for times in range(1, 9):
        place = tmp_path / str(times)
        place.mkdir()
        with full_disk(place, times):
            calls = serve(place, worker, with_seconds("1", 60.0), refused)
        (_, _, code), _ = calls.replies
        assert code == 0, times
        assert [*Contexts(str(place)).load(received("9").head)] == [*b"state"]
    place = tmp_path / "for long"
    place.mkdir()
    with full_disk(place, 10**9):
        calls = serve(place, worker, with_seconds("1", 1.0), refused)
    assert [code != 0 for _, _, code in calls.replies] == [True, True]


def with_seconds(id: str, seconds: float) -> Received:
    message = received(id)
    message.head.seconds = seconds
    return message


@contextmanager
def full_disk(folder: Path, times: int) -> Iterator[None]:
    """Refuse the next writes of whole files and lines below a folder, each of them for a while."""
    left = times
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal left
        if left and Path(f"/proc/self/fd/{descriptor}").resolve().is_relative_to(folder):
            left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


def test_a_large_reply_keeps_the_file_that_the_worker_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytes(range(256)) * (SMALL_BYTES // 128)

    def answer(task: PassedTask) -> Answer:
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


def test_a_flipped_bit_of_a_kept_reply_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    """In its head and in its content; another name of the algorithm means another version."""
    KeptReply(str(tmp_path)).save(Head(id="1", run=7), Content(b"an update"))
    file = tmp_path / "reply"
    whole = file.read_bytes()
    assert whole.startswith(b"blake3\n")
    for place in range(len(whole)):
        with subtests.test(place=place):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            file.write_bytes(damaged)
            caplog.clear()
            assert KeptReply(str(tmp_path)).head == Head()
            said = caplog.messages == [f"{file} is damaged: the last reply is lost"]
            assert said == (place >= len(b"blake3\n"))
    file.write_bytes(whole)
    kept = KeptReply(str(tmp_path))
    assert (kept.head.id, kept.content.map()) == ("1", b"an update")


@pytest.mark.parametrize("size", [9, 2 * SMALL_BYTES])
@pytest.mark.parametrize("protocol", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_a_kept_reply_of_another_protocol_is_dropped(
    protocol: int, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to protocol 4 its file began with a digest (0)."""
    content = Content(bytes(size))
    head = Head(id="1", run=7, protocol=protocol, size=size, digest=content.digest())
    write_sealed(tmp_path / "reply", head.SerializeToString(), content.data)
    if not protocol:
        (tmp_path / "reply").write_bytes(bytes(range(100, 200)))
    worker = FakeWorker(lambda task: Answer(content=Content(b"anew")))
    assert serve(tmp_path, worker, received("1")).replies == [("1", b"anew", 0)]
    assert "lost" not in caplog.text


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


def counting(task: PassedTask) -> Answer:
    """Count a training in the app's state; an evaluation leaves it unchanged."""
    if Head.FromString(task.head).type == "evaluate":
        return Answer(content=Content(task.state))
    return Answer(content=Content(task.state + b"x"), state=task.state + b"x")


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(counting)


def test_states_belong_to_the_run_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, worker: FakeWorker
) -> None:
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
    worker: FakeWorker,
) -> None:
    state = tmp_path / str(len(list(tmp_path.iterdir())))
    serve(state, worker, *(in_round(*each) for each in first))
    again = [in_round(*each, again="again") for each in repeated]
    assert [len(data) for _, data, _ in serve(state, worker, *again).replies] == expected


def test_a_device_keeps_the_states_of_a_few_runs(tmp_path: Path, worker: FakeWorker) -> None:
    (tmp_path / "contexts").mkdir()
    (tmp_path / "contexts" / "5").touch()  # another program's
    serve(tmp_path, worker, *(in_round(n, "train") for n in range(1, 9)))
    kept = Versions(tmp_path / "contexts" / FOLDER)
    assert kept.steps("context") == [Point(6), Point(7), Point(8)]
    for run in range(20, 30):
        serve(
            tmp_path,
            worker,
            Received(Head(id=str(run), run=run, type="train", protocol=PROTOCOL), Content(b"")),
        )
    assert len(list((tmp_path / "contexts").glob("*/"))) == KEPT_RUNS


def test_a_damaged_state_is_named_and_an_earlier_one_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, worker: FakeWorker
) -> None:
    serve(tmp_path, worker, in_round(1, "train"), in_round(2, "train"))
    file = tmp_path / "contexts" / FOLDER / "2.versions"
    file.write_bytes(file.read_bytes().replace(b"xx", b"xy"))
    assert serve(tmp_path, worker, in_round(3, "train")).replies[0][1] == b"xx"
    assert "2.versions is damaged: context of round 2 is lost" in caplog.text


def test_messages_of_a_run_folder_have_its_group() -> None:
    """The device reads the group: it opens no content."""
    config = ConfigRecord({"server-round": 3, "run-folder": FOLDER})
    assert group_of(RecordDict({"config": config}), 3) == f"{FOLDER}/3"
    assert group_of(RecordDict({"config": ConfigRecord({"server-round": 3})}), 3) == ""


def failing(error: Exception) -> FakeWorker:
    def fail(task: PassedTask) -> Answer:
        raise error

    return FakeWorker(fail)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DroppedError("the message's time is over"), 3),  # as Flower answers a message too late
        (OwnersLimitError("it took longer than the owner of this device allows"), 2),
        (CrashedError("the client app's process ended 3 times without a reply"), 8),
    ],
)
def test_work_that_fails_is_answered_by_an_error(
    tmp_path: Path, error: Exception, code: int
) -> None:
    assert serve(tmp_path, failing(error), received("1")).replies == [("1", b"", code)]


def test_a_message_of_a_newer_protocol_is_not_worked_on(tmp_path: Path) -> None:
    newer = FakeWorker(lambda task: Answer([b"never"]))
    assert serve(tmp_path, newer, received("2", protocol=PROTOCOL + 1)).replies == [("2", b"", 2)]
    assert newer.asked == []


def test_a_state_folder_is_one_session_and_counts_its_starts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, again, other = (
        count_start(str(folder)) for folder in (tmp_path, tmp_path, tmp_path / "other")
    )
    assert first.session == again.session != other.session
    assert [each.number for each in (first, again, other)] == [1, 2, 1]
    assert len({each.process for each in (first, again, other)}) == 3
    shutil.copytree(tmp_path, tmp_path / "clone")
    assert count_start(str(tmp_path)).number == count_start(str(tmp_path / "clone")).number == 3


@pytest.mark.parametrize(("kept", "number"), [(b"s" * 16, 1), (b"s" * 16 + b"\0" * 7 + b"\5", 6)])
def test_a_start_that_cannot_be_counted_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes, number: int
) -> None:
    """A full disk ends no client, and its next start is no copy."""
    (tmp_path / "session").write_bytes(kept)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "write_private", full)
        assert count_start(str(tmp_path)) == Start(b"s" * 16)
        (tmp_path / "session").unlink()
        with pytest.raises(OSError, match="No space left"):  # without an id no client begins
            count_start(str(tmp_path))
    (tmp_path / "session").write_bytes(kept)
    assert count_start(str(tmp_path)).number == number


def test_a_damaged_session_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "session").write_bytes(b"s" * 15)
    start = count_start(str(tmp_path))
    assert (start.session[:15] != b"s" * 15, start.number) == (True, 1)


ORDER = Order("fairbloom.serverapp:app", "fairbloom", "0.1.0", {"clients": 2, "device": "cpu"})


def make_runs(folder: Path, codes: Callable[[], int], keep: int = 0) -> tuple[Runs, list[int]]:
    """Return runs with processes that end with these exit codes, and the list of those started."""
    started = list[int]()

    class Made(Runs):
        async def _start(self, run: RunFiles, order: Order) -> int:
            assert order == ORDER
            started.append(run.number)
            self._mailbox.begin(run.number)
            return codes()

    members = Members(folder)
    mailbox = Mailbox(MemoryBudget(folder))
    return Made(folder, members, mailbox, Port(members, mailbox), keep), started


def carry_out(runs: Runs, *awaited: RunFiles) -> None:
    async def until_over() -> None:
        task = asyncio.create_task(runs.carry_out())
        async with asyncio.timeout(30):
            while any(run.status is None for run in awaited):
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(until_over())


def test_runs_are_carried_out_in_order_and_once(tmp_path: Path) -> None:
    first, stopped, damaged, last = (submit(tmp_path, ORDER) for _ in range(4))
    (stopped.folder / "stop").touch()
    damaged.order.write_text(
        damaged.order.read_text().replace("clients = 2", "clients = 2026-01-01")
    )
    runs, started = make_runs(tmp_path, iter([0, 1]).__next__)
    assert [run.number for run in runs.waiting()] == [
        first.number,
        stopped.number,
        damaged.number,
        last.number,
    ]
    carry_out(runs, first, stopped, damaged, last)
    assert [run.status for run in (first, stopped, damaged, last)] == [0, 130, 2, 1]
    assert started == [first.number, last.number]
    assert (
        "run.toml cannot be used: it is neither numbers, texts, true nor false"
        in damaged.log.read_text()
    )
    again, _ = make_runs(tmp_path, iter([]).__next__)
    assert again.waiting() == []


@pytest.mark.parametrize(("keep", "left"), [(0, 4), (1, 1), (3, 3), (9, 4)])
def test_files_of_the_last_ended_runs_are_kept(
    tmp_path: Path, out: Path, keep: int, left: int
) -> None:
    """And of runs that wait; the highest number stays known."""
    folder = tmp_path / "runs"
    ended = [submit(folder, ORDER) for _ in range(4)]
    out.mkdir()
    runs, _ = make_runs(folder, lambda: 0, keep)
    carry_out(runs, *ended[3:])
    asyncio.run(asyncio.wait_for(one_look(runs), 30))
    assert [run for run in ended if run.folder.exists()] == ended[4 - left :]
    assert out.exists()
    assert submit(folder, ORDER).number > ended[-1].number


async def one_look(runs: Runs) -> None:
    """Let the runs look at their folder once."""
    task = asyncio.create_task(runs.carry_out())
    await asyncio.sleep(0.05)
    task.cancel()


def test_a_drained_server_begins_no_further_run(tmp_path: Path) -> None:
    first, second = (submit(tmp_path / "runs", ORDER) for _ in range(2))

    def drain() -> int:
        (tmp_path / DRAIN).touch()
        return 0

    runs, started = make_runs(tmp_path / "runs", drain)
    carry_out(runs, first)
    asyncio.run(asyncio.wait_for(one_look(runs), 30))
    assert (started, second.status) == ([first.number], None)
    (tmp_path / DRAIN).unlink()  # as a start does
    carry_out(runs, second)
    assert second.status == 0


def test_a_run_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    run = submit(tmp_path, ORDER)
    runs, started = make_runs(tmp_path, lambda: -9)
    carry_out(runs, run)
    assert run.status == 128 + 9
    assert len(started) == MAX_RESTARTS + 1
    assert (
        f"was killed {MAX_RESTARTS + 1} times (killed by SIGKILL): it is given up"
        in run.log.read_text()
    )


def test_a_wait_ends_once_enough_replies_are_there(tmp_path: Path) -> None:
    runs, _ = make_runs(tmp_path, lambda: 0)
    mailbox = runs._mailbox
    mailbox.begin(1)
    digest = mailbox.store(Content(b"model"))
    ids = ["a", "b", "c"]
    mailbox.send(1, [Envelope(id, id, 1, "", "train", digest, 60.0, kept=True) for id in ids])

    async def wait(number: int, answered: str) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        message = mailbox.find(answered, answered)
        assert message is not None
        task = asyncio.create_task(runs._answer(1, "wait", (ids, number, 30.0), b""))
        await asyncio.sleep(0.01)
        mailbox.answer(message, Reply(None, 2, "an error counts"))
        await task
        return loop.time() - began

    async def wait_for_each() -> list[float]:
        return [await wait(number, answered) for number, answered in enumerate(ids, 1)]

    assert max(asyncio.run(wait_for_each())) < 20.0


def test_a_run_says_for_whom_it_waits_until_it_ends(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.grid.note_wait("a")
    assert server.sent == ["a"]
    made, _ = make_runs(tmp_path / "runs", lambda: 0)
    made.__class__ = Runs  # with its own `_start`
    for request in ("note_wait", "awaited: a"), ("save", 4):
        asyncio.run(made._answer(7, request[0], request[1:], ()))
    assert (made.waiting_for, made.last_round[0]) == ("awaited: a", 4)
    monkeypatch.setattr("sys.executable", "false")  # the run ends with an error
    assert asyncio.run(made._start(submit(tmp_path / "runs", ORDER), ORDER)) == 1
    assert made.waiting_for == ""


@pytest.mark.parametrize(
    "line",
    [
        "max-reply = -1",
        'pin-keys = "no"',
        "listen = 9092",
        'listen = "9092"',
        'superlink = "a.org:9092"',
    ],
)
def test_settings_of_the_server_are_checked(tmp_path: Path, line: str) -> None:
    with pytest.raises(DeployError, match="is not a federation's folder"):
        Federation.read(tmp_path)
    file = tmp_path / "federation.toml"
    good = 'server = "a.org:9092"\n'
    file.write_text(good + line)
    with pytest.raises(DeployError, match=line.partition(" ")[0]):
        Federation.read(tmp_path)
    file.write_text("max-reply = 1000")
    with pytest.raises(DeployError, match="server is missing"):
        Federation.read(tmp_path)
    file.write_text(f"{good}max-reply = 1000")
    read = Federation.read(tmp_path)
    assert (read.max_reply, read.pin_keys, read.listen) == (1000, True, "[::]:9092")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation.init(tmp_path / "fed", ["server.example"], 9092)


def test_the_servers_certificate_is_renewed_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, federation: Federation
) -> None:
    authority = federation.authority
    server = federation.identity
    pki.make_server_certificate(*authority, *server, ["server.example"], days=30.0)
    first = read_identity(federation)
    renew_if_due(federation, Faults())
    assert read_identity(federation) == first
    server[0].write_bytes(make_old(authority, server[1]))
    hidden = authority[1].rename(tmp_path / "elsewhere")
    renew_if_due(federation, Faults())
    assert "run fairbloom deploy renew where ca.key is" in caplog.text
    hidden.rename(authority[1])
    renew_if_due(federation, Faults())
    assert pki.days_left(server[0]) > 5.0
    assert pki.read_hosts(server[0])[0] == "server.example"
    read_identity(federation)
    server[0].write_bytes(first[1])
    with pytest.raises(DeployError, match=r"server\.key is not the key of"):
        read_identity(federation)


def make_old(authority: tuple[Path, Path], key: Path) -> bytes:
    """Return a server's certificate of 10 days, 9 of them over."""
    signer = load_pem_private_key(authority[1].read_bytes(), None)
    holder = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    assert isinstance(holder, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority[0].read_bytes())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(issuer.subject)
        .issuer_name(issuer.subject)
        .public_key(holder.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("server.example")]), critical=False
        )
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


# Faults of one file, or of the machine ------------------------------------------------------------


def break_file(file: Path, how: str) -> None:
    """Make a file that cannot be read."""
    if how == "a link to itself":
        file.symlink_to(file.name)
    elif how == "a pipe":
        os.mkfifo(file)
    elif how == "endless":
        file.symlink_to("/dev/zero")
    elif how == "a folder":
        file.mkdir()
    else:
        file.write_bytes(b"\xff" * (2 << 20))


BROKEN = ("a link to itself", "a pipe", "endless", "a folder", "too large")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_of_a_client_hides_no_revocation(
    how: str, caplog: pytest.LogCaptureFixture, federation: Federation
) -> None:
    enroll(federation, "a")
    members = Members(federation.path / "clients")
    members.refresh()
    break_file(federation.path / "clients" / "b.toml", how)
    members.refresh()
    revoke(federation, "a")
    members.refresh()
    assert members.by_name["a"].revoked
    said = [record.getMessage() for record in caplog.records]
    assert sum("b.toml cannot be used" in words for words in said[:1]) == 1
    members.refresh()
    broken = federation.path / "clients" / "b.toml"
    if broken.is_dir():
        broken.rmdir()
    else:
        broken.unlink()
    caplog.clear()
    enroll(federation, "b")
    members.refresh()
    assert not members.by_name["b"].revoked
    assert caplog.text == ""


@pytest.mark.parametrize("how", [*BROKEN, "no TOML"])
def test_a_broken_order_keeps_no_other_run_waiting(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, last = (submit(tmp_path / "runs", ORDER) for _ in range(2))
    broken.order.unlink()
    break_file(broken.order, how)
    runs, started = make_runs(tmp_path / "runs", lambda: 0)
    carry_out(runs, last)
    assert (started, last.status) == ([last.number], 0)
    assert caplog.text.count(f"run {broken.number} ") <= 2


def test_a_run_whose_folder_is_read_only_waits_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = (submit(tmp_path / "runs", ORDER) for _ in range(2))
    end = RunFiles.end
    locked = {first.number}

    def end_unless_locked(run: RunFiles, status: int) -> None:
        if run.number in locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(run.folder))
        end(run, status)

    monkeypatch.setattr(RunFiles, "end", end_unless_locked)
    monkeypatch.setattr(module, "ORDERS_POLL_SECONDS", 0.01)
    runs, started = make_runs(tmp_path / "runs", lambda: 0)
    carry_out(runs, last)
    assert started[:2] == [first.number, last.number]
    assert caplog.text.count("cannot continue, and is tried again") == 1
    locked.clear()
    carry_out(runs, first)
    assert (first.status, last.status) == (0, 0)


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_fault_of_the_machine_only_delays_runs(
    tmp_path: Path,
    fault: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, last = (submit(tmp_path / "runs", ORDER) for _ in range(2))
    faults = [fault, fault, fault]

    def code() -> int:
        if faults:
            raise faults.pop()
        return 0

    monkeypatch.setattr(module, "ORDERS_POLL_SECONDS", 0.01)
    runs, started = make_runs(tmp_path / "runs", code)
    carry_out(runs, first, last)
    assert started == [first.number] * 4 + [last.number]  # in their order
    assert caplog.text.count("cannot continue, and is tried again") == 1


def test_orders_are_found_again_after_too_many_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = submit(tmp_path / "runs", ORDER)
    faults = [OSError(errno.EMFILE, "Too many open files") for _ in range(3)]
    look = Path.iterdir

    def iterdir(self: Path) -> Iterator[Path]:
        if self.name == "runs" and faults:
            raise faults.pop()
        return look(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(module, "ORDERS_POLL_SECONDS", 0.01)
    runs, _ = make_runs(tmp_path / "runs", lambda: 0)
    carry_out(runs, run)
    assert run.status == 0
    assert caplog.text.count("no run is begun") == 1


def test_a_fault_in_one_step_of_a_second_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, federation: Federation
) -> None:
    daemon = Daemon(federation, 1024)
    done = list[str]()

    def fail(step: str) -> Callable[[], None]:
        def look() -> None:
            done.append(step)
            raise OSError(errno.EMFILE, "Too many open files")

        return look

    monkeypatch.setattr(daemon._members, "refresh", fail("members"))
    monkeypatch.setattr(daemon._port, "close_unadmitted", fail("port"))
    monkeypatch.setattr(daemon._mailbox, "expire", fail("mailbox"))
    for _ in range(3):
        daemon._look()
    assert done == ["members", "port", "mailbox"] * 3
    assert read_now(federation).at > 0
    assert len(caplog.records) == 3
    (federation.state / ".now.json.draft").mkdir()
    for _ in range(3):
        daemon._look()
    assert len(caplog.records) == 4


def test_a_copy_is_remembered_by_the_next_server(federation: Federation) -> None:
    daemon = Daemon(federation, 1024)
    daemon._port.devices["a"] = PortDevice(copied_at=5.0)
    daemon._port.devices["b"] = PortDevice()
    daemon._write_now()
    assert read_now(federation).copied == {"a": 5.0}
    again = Daemon(federation, 1024)
    again._write_now()
    assert read_now(federation).copied == {"a": 5.0}
    again._port.devices["a"] = PortDevice(copied_at=7.0)
    again._write_now()
    assert read_now(federation).copied == {"a": 7.0}


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "nonsense",
        '{"copied": {"a": "b"}}',
        '{"at": "now"}',
        '{"seen": 5}',
        '{"seen": {"a": "b"}}',
        '{"seen": {"a": 1e300}}',
        '{"free": NaN}',
        '{"days": 5}',
        '{"days": {"ca.crt": -1}}',
        '{"waiting": 5}',
        '{"reasons": 5}',
        '{"reasons_at": {"a": "now"}}',
        '{"versions": {"a": 5}}',
        '{"run": [1]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_state_of_the_server_says_nothing(content: str, federation: Federation) -> None:
    (federation.state / NOW).write_text(content)
    assert read_now(federation) == Now()
    daemon = Daemon(federation, 1024)
    daemon._runs.current = submit(federation.runs, ORDER).number
    daemon._write_now()
    assert read_now(federation).run == daemon._runs.current


# Clocks -------------------------------------------------------------------------------------------


def test_runs_are_numbered_upwards_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "state" / "runs"
    now = time.time_ns() // 1_000_000
    numbers = list[int]()
    for milliseconds in (now, now - 10_000, now - 10_000, now + 5, now - 3600_000):
        monkeypatch.setattr(module, "time_ns", lambda at=milliseconds: at * 1_000_000)
        numbers.append(submit(runs, ORDER).number)
        if milliseconds == now + 5:
            shutil.rmtree(runs)  # an operator cleans up
    assert numbers == [now, now + 1, now + 2, now + 5, now + 6]
    (runs.parent / module.LAST_NUMBER).write_text("nonsense")
    assert submit(runs, ORDER).number == now + 7
    assert [run.number for run in module.list_runs(runs)] == [now + 6, now + 7]


def test_folders_with_other_names_are_no_runs(tmp_path: Path) -> None:
    run = submit(tmp_path, ORDER)
    for name in ("007", "٣", "9" * 40, "-1", "1e5", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.toml").write_text("")
    assert [each.number for each in module.list_runs(tmp_path)] == [run.number]

"""The mailbox: messages that wait for devices, replies, and how long both are kept.

Unneeded work ends on the device, with or without its process.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from benchmarks.flower import wait_until
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.fleet.connections import list_open_files
from fairbloom.deploy.fleet.content import SMALL_BYTES, Content, MemoryBudget, StoredContent, write
from fairbloom.deploy.fleet.mailbox import (
    COLLECT_BYTES,
    KEPT_SECONDS,
    MAX_DELIVERIES,
    Envelope,
    Mailbox,
    QueuedMessage,
    Reply,
)
from fairbloom.deploy.fleet.messages import CHUNK_BYTES
from fairbloom.deploy.fleet.wire_pb2 import Taken
from fairbloom.deploy.fleet.worker import DroppedError, OwnersLimitError, Worker
from tests.rounds.test_waits import Day as Clock

from .apps import content_of, task_of, write_app, write_version

RUN = 7


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mailbox(tmp_path: Path, clock: Clock) -> Mailbox:
    box = Mailbox(MemoryBudget(tmp_path), clock.monotonic)
    box.begin(RUN)
    return box


def send(
    box: Mailbox,
    id: str,
    *,
    device: str = "a",
    number: int = 1,
    kept: bool = True,
    data: bytes = b"model",
) -> None:
    box.send(RUN, [Envelope(id, device, number, "", "train", box.store(Content(data)), 10.0, kept)])


def taken(box: Mailbox, device: str = "a") -> QueuedMessage:
    """Hand out a message, as the port does."""
    message = box.next(device)
    box.begin_work(message)
    message.deliveries = message.deliveries + 1
    return message


def stored(budget: MemoryBudget, data: bytes) -> StoredContent:
    return StoredContent.of(budget, Content(data))


def answer(box: Mailbox, message: QueuedMessage, data: bytes = b"update") -> None:
    box.answer(message, Reply(stored(box.budget, data)))


def collected(box: Mailbox, *ids: str) -> dict[str, bytes | int]:
    (found, _), contents = box.collect(ids)
    return {
        each.id: each.code or bytes(content.map())
        for each, content in zip(found, contents, strict=True)
    }


def test_a_message_is_given_until_it_is_answered(mailbox: Mailbox) -> None:
    send(mailbox, "1")
    send(mailbox, "2")
    assert mailbox.next("b") is None
    assert taken(mailbox).envelope.id == "1"
    message = taken(mailbox)  # a device that asks for a message is idle: it was started again
    assert message.envelope.id == "1"
    answer(mailbox, message)
    assert taken(mailbox).envelope.id == "2"
    assert collected(mailbox, "1", "2") == {"1": b"update"}


def test_a_message_that_kills_its_device_ends_as_an_error(mailbox: Mailbox) -> None:
    send(mailbox, "1")
    for _ in range(MAX_DELIVERIES):
        taken(mailbox)
    assert mailbox.next("a") is None
    assert collected(mailbox, "1") == {"1": 8}  # Flower's code for an app that crashed


def test_the_first_answer_counts(mailbox: Mailbox) -> None:
    send(mailbox, "1")
    message = taken(mailbox)
    answer(mailbox, message, b"first")
    answer(mailbox, message, b"second")
    assert collected(mailbox, "1") == {"1": b"first"}


def test_replies_of_a_round_stay_until_it_is_saved(mailbox: Mailbox) -> None:
    send(mailbox, "1")
    send(mailbox, "fresh", device="b", kept=False)
    answer(mailbox, taken(mailbox))
    answer(mailbox, taken(mailbox, "b"))
    assert collected(mailbox, "1", "fresh") == {"1": b"update", "fresh": b"update"}
    mailbox.begin(RUN)  # the run's process was killed, and another one sends the same message
    send(mailbox, "1")
    assert mailbox.next("a") is None
    assert collected(mailbox, "1", "fresh") == {"1": b"update", "fresh": 3}
    mailbox.save(RUN, 1)
    assert collected(mailbox, "1") == {"1": 3}  # Flower's code for an unavailable message
    assert mailbox.budget.used == 0


def test_a_saved_round_withdraws_messages_not_yet_begun(mailbox: Mailbox) -> None:
    send(mailbox, "1", device="away")
    send(mailbox, "2", device="slow")
    message = taken(mailbox, "slow")
    mailbox.save(RUN, 1)
    assert mailbox.next("away") is None
    assert collected(mailbox, "1", "2") == {"1": 5}  # Flower's code for an unavailable node
    answer(mailbox, message)
    assert collected(mailbox, "2") == {"2": b"update"}
    assert collected(mailbox, "2") == {"2": 3}


def test_a_late_reply_frees_its_device_and_no_memory_is_held(mailbox: Mailbox) -> None:
    send(mailbox, "1", device="slow")
    answer(mailbox, taken(mailbox, "slow"))
    mailbox.save(RUN, 1)  # before the run has asked for it
    # not 3, after which the run would still wait for the device
    assert collected(mailbox, "1") == {"1": 5}
    mailbox.save(RUN, 2)
    assert mailbox.budget.used == 0


def test_work_on_unknown_messages_continues_during_its_run(mailbox: Mailbox, clock: Clock) -> None:
    send(mailbox, "1")
    taken(mailbox)
    assert mailbox.work_status("a", "1", RUN).answer == Taken.TAKEN
    assert mailbox.work_status("b", "1", RUN).answer == Taken.LATER  # another device's message
    assert mailbox.work_status("a", "2", RUN).answer == Taken.LATER
    assert mailbox.work_status("a", "2", RUN + 1).answer == Taken.DROP
    clock.now = 11.0
    mailbox.expire()
    assert mailbox.work_status("a", "1", RUN).reason == "the message's time is over"
    assert collected(mailbox, "1") == {"1": 3}
    mailbox.end(RUN)
    assert mailbox.work_status("a", "1", RUN).reason == "the run is over"
    assert mailbox.budget.used == 0


def test_messages_expire_and_replies_some_minutes_later(mailbox: Mailbox, clock: Clock) -> None:
    send(mailbox, "1", kept=False)
    send(mailbox, "2", device="b")
    answer(mailbox, taken(mailbox))
    clock.now = 5.0
    send(mailbox, "2", device="b")  # sent again, it expires later
    clock.now = 12.0
    mailbox.expire()
    assert mailbox.next("b") is not None
    clock.now = 16.0
    mailbox.expire()
    assert mailbox.next("b") is None
    assert collected(mailbox, "2") == {"2": 3}
    clock.now = 11.0 + KEPT_SECONDS
    mailbox.expire()
    assert collected(mailbox, "1") == {"1": 3}
    assert mailbox.budget.used == 0


def test_a_message_is_owed_while_its_device_works_or_may(mailbox: Mailbox, clock: Clock) -> None:
    for id in ("1", "2", "3"):
        send(mailbox, id, device=id)
    answer(mailbox, taken(mailbox, "1"))
    taken(mailbox, "2")
    assert mailbox.owed(["1", "2", "3", "unknown"]) == ["2", "3"]
    clock.now = 11.0  # the device of message 2 still works, and that of message 3 has not begun
    mailbox.expire()
    assert mailbox.owed(["1", "2", "3"]) == ["2"]
    assert mailbox.work_status("2", "2", RUN).answer == Taken.DROP
    assert mailbox.next("2") is None  # after a late reply, or a new start, it asks for work
    assert mailbox.owed(["2"]) == []


def test_work_is_owed_after_its_message_is_forgotten(mailbox: Mailbox, clock: Clock) -> None:
    send(mailbox, "1")
    taken(mailbox)
    clock.now = 11.0 + KEPT_SECONDS
    mailbox.expire()
    assert mailbox.budget.used == 0
    assert mailbox.owed(["1"]) == ["1"]
    send(mailbox, "2", number=2)
    assert mailbox.next("a") is not None
    assert mailbox.owed(["1", "2"]) == ["2"]


def test_equal_content_is_stored_once(mailbox: Mailbox) -> None:
    for number in range(5):
        send(mailbox, str(number), device=f"client-{number}", data=b"x" * 1000)
    assert mailbox.budget.used == 1000


def test_more_than_the_memory_goes_to_files_without_names(tmp_path: Path) -> None:
    room = MemoryBudget(tmp_path, memory=3 << 20)
    small = stored(room, b"s" * (1 << 20))
    large = stored(room, bytes(range(256)) * (20 << 10))
    assert room.used == 1 << 20
    assert [*tmp_path.iterdir()] == []
    pieces = large.pieces()
    first = next(pieces)
    del large  # while it is sent to a device
    assert b"".join([first, *pieces]) == bytes(range(256)) * (20 << 10)
    del small
    assert room.used == 0


@pytest.mark.parametrize(("memory", "copies"), [(1 << 20, 0), (0, 1)])
def test_a_file_of_a_run_is_kept_if_there_is_memory_for_it(
    tmp_path: Path, memory: int, copies: int
) -> None:
    data = bytes(range(256)) * (SMALL_BYTES // 128)
    passed = write([data], FileIO)  # type: ignore[arg-type]
    file = passed.file
    content = StoredContent.of(MemoryBudget(tmp_path, memory), passed)
    assert (content.file is not file) == copies
    assert b"".join(content.pieces()) == data
    assert content.digest() == Content(data).digest()


def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**options: object) -> None:
        raise OSError(28, "No space left on device")

    box = Mailbox(MemoryBudget(tmp_path, memory=1 << 20))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left"):
        box.store(Content(b"x" * (5 << 20)))
    assert box.budget.used == 0


def test_replies_without_files_are_collected_in_parts(tmp_path: Path) -> None:
    mailbox = Mailbox(MemoryBudget(tmp_path, files=0))
    mailbox.begin(RUN)
    ids = [str(number) for number in range(3)]
    for id in ids:
        send(mailbox, id, device=id)
        answer(mailbox, taken(mailbox, id), b"x" * (COLLECT_BYTES * 2 // 3))
    (first, more), contents = mailbox.collect(ids)
    assert [each.id for each in first] == ["0"]
    assert [content.size for content in contents] == [COLLECT_BYTES * 2 // 3]
    assert more


# Files --------------------------------------------------------------------------------------------


def test_contents_leave_files_for_connections(tmp_path: Path) -> None:
    budget = MemoryBudget(tmp_path, memory=0, files=1)
    first = stored(budget, b"first")
    with pytest.raises(OSError, match="Too many open files"):
        stored(budget, b"second")
    pieces = first.pieces()
    del first
    with pytest.raises(OSError, match="Too many open files"):
        stored(budget, b"second")  # the first one is still being sent
    assert list(pieces) == [b"first"]
    del pieces
    assert b"".join(stored(budget, b"second").pieces()) == b"second"


def test_a_content_that_many_calls_read_has_one_file(tmp_path: Path) -> None:
    content = stored(MemoryBudget(tmp_path, memory=0), bytes(3 << 20))
    before = len(list_open_files())
    readers = [content.pieces() for _ in range(100)]
    assert [len(next(reader)) for reader in readers] == [CHUNK_BYTES] * 100
    assert len(list_open_files()) == before


def test_without_files_content_stays_in_memory(tmp_path: Path) -> None:
    budget = MemoryBudget(tmp_path, files=0)
    content = stored(budget, bytes(3 << 20))
    assert (content.file, budget.used) == (None, 3 << 20)
    assert b"".join(content.pieces()) == bytes(3 << 20)


ENDLESS = """
import time
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    while message.content["config"]["do"] == "endless":
        try:
            time.sleep(0.01)
        except Exception:
            pass
    return Message(RecordDict(), reply_to=message)
"""


@pytest.fixture
def worker(own_client: ClientSettings) -> Iterator[Worker]:
    worker = Worker(own_client)
    yield worker
    worker.end()


def drop_later(worker: Worker, id: str, seconds: float = 0.0) -> None:
    """Drop work in another thread, these seconds after the worker has got it."""

    def drop() -> None:
        wait_until(lambda: worker.working == id)
        time.sleep(seconds)
        worker.drop(id, DroppedError("its time is over"))

    threading.Thread(target=drop, daemon=True).start()


@pytest.mark.slow
def test_an_endless_app_is_dropped_and_the_next_message_answered(
    worker: Worker, home: Path
) -> None:
    write_app(home, {"tried_app.py": ENDLESS})
    content_of(worker.answer(task_of("reply"), "1/a"))
    drop_later(worker, "1/b", 1.0)
    with pytest.raises(DroppedError, match="its time is over"):
        worker.answer(task_of("endless"), "1/b")
    assert (worker.working, worker.runs) == ("", False)
    content_of(worker.answer(task_of("reply"), "1/c"))


@pytest.mark.slow
def test_a_loading_worker_is_not_ended_with_the_waiting_work(worker: Worker, home: Path) -> None:
    """Otherwise, a device that loads libraries for longer than a message lives never answers."""
    write_version(home, 1)
    drop_later(worker, "1/a")
    with pytest.raises(DroppedError, match="its time is over"):
        worker.answer(task_of("reply"), "1/a")
    loading = worker._process
    assert loading is not None
    assert worker.runs
    threading.Timer(
        0.2, worker.drop, ("1/a", DroppedError("the run is over"))
    ).start()  # other work continues
    assert content_of(worker.answer(task_of("reply"), "1/b"))["metrics"]["version"] == 1
    assert worker._process is loading
    worker.end()
    assert not worker.runs
    assert loading.returncode is not None


@pytest.mark.slow
def test_the_owners_limit_ends_work_with_the_setting(
    own_client: ClientSettings, home: Path
) -> None:
    worker = Worker(replace(own_client, limits={"round-seconds": 0.5}))
    write_app(home, {"tried_app.py": ENDLESS})
    with pytest.raises(OwnersLimitError, match=r"0.5 s, limits\.round-seconds"):
        worker.answer(task_of("endless"), "1/a")
    assert not worker.runs

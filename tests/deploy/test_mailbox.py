"""The mailbox: messages that wait for devices, replies, and how long both are kept."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.deploy.fleet.connections import list_open_files
from fairbloom.deploy.fleet.mailbox import (
    COLLECT_BYTES,
    KEPT_SECONDS,
    MAX_DELIVERIES,
    Content,
    Envelope,
    Mailbox,
    MemoryBudget,
    QueuedMessage,
    Reply,
)
from fairbloom.deploy.fleet.messages import CHUNK_BYTES
from fairbloom.deploy.fleet.wire_pb2 import Taken

RUN = 7


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mailbox(tmp_path: Path, clock: Clock) -> Mailbox:
    box = Mailbox(MemoryBudget(tmp_path), clock)
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
    digest = box.store(data)
    box.send(RUN, [Envelope(id, device, number, "", "train", digest, 10.0, kept)])


def taken(box: Mailbox, device: str = "a") -> QueuedMessage:
    """Hand out a message, as the port does."""
    message = box.next(device)
    assert message is not None
    message.working = True
    message.deliveries = message.deliveries + 1
    return message


def answer(box: Mailbox, message: QueuedMessage, data: bytes = b"update") -> None:
    box.answer(message, Reply(Content.of(box.budget, data)))


def collected(box: Mailbox, *ids: str) -> dict[str, bytes | int]:
    (found, _), pieces = box.collect(ids)
    content = b"".join(pieces)
    read = dict[str, bytes | int]()
    for each in found:
        size = each.size or 0
        read[each.id] = each.code if each.size is None else content[:size]
        content = content[size:]
    return read


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


def test_equal_content_is_stored_once(mailbox: Mailbox) -> None:
    for number in range(5):
        send(mailbox, str(number), device=f"client-{number}", data=b"x" * 1000)
    assert mailbox.budget.used == 1000


def test_more_than_the_memory_goes_to_files_without_names(tmp_path: Path) -> None:
    room = MemoryBudget(tmp_path, memory=3 << 20)
    small = Content.of(room, b"s" * (1 << 20))
    large = Content.of(room, bytes(range(256)) * (20 << 10))
    assert room.used == 1 << 20
    assert [*tmp_path.iterdir()] == []
    pieces = large.pieces()
    first = next(pieces)
    large.close()  # while it is sent to a device
    assert b"".join([first, *pieces]) == bytes(range(256)) * (20 << 10)
    small.close()
    assert room.used == 0


def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**options: object) -> None:
        raise OSError(28, "No space left on device")

    box = Mailbox(MemoryBudget(tmp_path, memory=1 << 20))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left"):
        box.store(b"x" * (5 << 20))
    assert box.budget.used == 0


def test_replies_are_collected_in_parts(mailbox: Mailbox) -> None:
    ids = [str(number) for number in range(3)]
    for id in ids:
        send(mailbox, id, device=id)
        answer(mailbox, taken(mailbox, id), b"x" * (COLLECT_BYTES * 2 // 3))
    mailbox.save(RUN, 0)
    (first, more), pieces = mailbox.collect(ids)
    assert [each.id for each in first] == ["0"]
    assert sum(map(len, pieces)) == first[0].size
    assert more


# Files --------------------------------------------------------------------------------------------


def test_contents_leave_files_for_connections(tmp_path: Path) -> None:
    budget = MemoryBudget(tmp_path, memory=0, files=1)
    first = Content.of(budget, b"first")
    with pytest.raises(OSError, match="Too many open files"):
        Content.of(budget, b"second")
    pieces = first.pieces()
    first.close()
    with pytest.raises(OSError, match="Too many open files"):
        Content.of(budget, b"second")  # the first one is still being sent
    assert list(pieces) == [b"first"]
    del pieces
    assert b"".join(Content.of(budget, b"second").pieces()) == b"second"


def test_a_content_that_many_calls_read_has_one_file(tmp_path: Path) -> None:
    content = Content.of(MemoryBudget(tmp_path, memory=0), bytes(3 << 20))
    before = len(list_open_files())
    readers = [content.pieces() for _ in range(100)]
    assert [len(next(reader)) for reader in readers] == [CHUNK_BYTES] * 100
    assert len(list_open_files()) == before


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), MemoryError()])
def test_a_reply_that_cannot_be_read_is_an_error(
    mailbox: Mailbox, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in ("1", "2"):
        send(mailbox, id, kept=False)
        content = Content.of(mailbox.budget, id.encode())
        message = mailbox.find("a", id)
        assert message is not None
        mailbox.answer(message, Reply(content))
        if id == "1":

            def fail() -> Iterator[bytes]:
                raise fault

            monkeypatch.setattr(content, "pieces", fail)
    ((broken, whole), more), pieces = mailbox.collect(["1", "2"])
    assert "the server cannot read the reply" in broken.reason
    assert (broken.size, whole.size, pieces, more) == (None, 1, [b"2"], False)

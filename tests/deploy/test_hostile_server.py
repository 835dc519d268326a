"""A server that attacks its device: endless messages, false heads, texts that forge log lines."""

import contextlib
import io
import logging
import math
import re
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest
from blake3 import blake3

from fairbloom.client.guard.log_files import AuditLog, read_entries
from fairbloom.deploy.device.accepted import Installed
from fairbloom.deploy.fleet import calls as fleet_calls
from fairbloom.deploy.fleet.app_process import answer
from fairbloom.deploy.fleet.calls import (
    MAX_FAULTS,
    Calls,
    IncompleteError,
    Outage,
    RefusedError,
    receive,
)
from fairbloom.deploy.fleet.content import MEMORY_FILE_BYTES, SMALL_BYTES, MemoryBudget
from fairbloom.deploy.fleet.messages import CHUNK_BYTES, MAX_SETTINGS_BYTES, SERVICE, Start
from fairbloom.deploy.fleet.session import Contexts, KeptReply, Session
from fairbloom.deploy.fleet.wire_pb2 import Chunk, Drop, Head, Taken, Working
from fairbloom.logs import log
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.version import PROTOCOL

from .apps import NODE, content_of, task_of, write_version

HERE = Path(tempfile.gettempdir())
FORGED = "train\nfairbloom client: connected as client FAKE\x1b[2J\x9b31m\u202e"


def head_of(data: bytes = b"model", **values: Any) -> Head:
    digest = blake3(data).digest()
    about = {"id": "1", "type": "train", "protocol": PROTOCOL, "seconds": 60.0, "run": 7}
    return Head(**{**about, "size": len(data), "digest": digest, **values})


def in_head(head: Head, data: bytes = b"") -> bytes:
    """Return the first chunk of a message."""
    return Chunk(head=head, data=data).SerializeToString()


class Lying:
    """A server on this machine that sends these chunks to a device, and keeps its replies."""

    def __init__(self, send: Callable[[], Iterator[bytes]], reason: str = "") -> None:
        self.replies: list[Head] = []
        handlers = {
            "Next": grpc.unary_stream_rpc_method_handler(self._next, Working.FromString, None),
            "Reply": grpc.stream_unary_rpc_method_handler(
                self._reply, None, Taken.SerializeToString
            ),
            "Beat": grpc.unary_unary_rpc_method_handler(
                lambda working, context: Drop(), Working.FromString, Drop.SerializeToString
            ),
        }
        self._send = send
        self._reason = reason
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        port = self._server.add_secure_port("localhost:0", grpc.local_server_credentials())
        self._server.start()
        self.address = f"localhost:{port}"

    def _next(self, working: Working, context: Any) -> Iterator[bytes]:
        if self.replies:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "that was all")
        yield from self._send()

    def _reply(self, chunks: Iterator[bytes], context: Any) -> Taken:
        self.replies.append(Chunk.FromString(next(chunks)).head)
        for _ in chunks:
            pass
        return Taken(answer=Taken.DROP, reason=self._reason)

    @contextlib.contextmanager
    def calls(self) -> Iterator[Calls]:
        """Yield a device's calls of this server; then end both."""
        credentials = grpc.local_channel_credentials()
        calls = Calls(
            self.address, credentials, Start(b"1" * 16), Outage(), lambda: None, folder=HERE
        )
        try:
            yield calls
        finally:
            calls.close()
            self._server.stop(None).wait()


# Endless and false messages -----------------------------------------------------------------------


def endless(first: bytes, then: bytes) -> Iterator[bytes]:
    yield first
    yield from [then] * 100
    raise AssertionError("100 chunks were taken")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (head_of(), bytes(CHUNK_BYTES)),
        (head_of(), b""),
        (head_of(), in_head(head_of())),
        (head_of(size=2), b"m"),
    ],
    ids=["bytes", "empty", "heads", "pieces"],
)
def test_no_more_is_taken_than_a_head_announces(first: Head, then: bytes) -> None:
    with pytest.raises(IncompleteError, match="did not come whole"):
        receive(endless(in_head(first), then), MemoryBudget(HERE))


@pytest.mark.parametrize("protocol", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_content_of_another_protocol_is_not_read(protocol: int) -> None:
    """Its digest may be another one: the session says which side to upgrade."""
    head = head_of(protocol=protocol, digest=b"", size=3 * CHUNK_BYTES)
    message = receive(endless(in_head(head), bytes(CHUNK_BYTES)), MemoryBudget(HERE))
    assert (message.head, message.content.size, message.refused) == (head, 0, "")


def test_many_small_chunks_take_no_more_than_their_bytes() -> None:
    data = bytes(100_000)
    pieces = (data[start : start + 2] for start in range(0, len(data), 2))
    tracemalloc.start()
    received = receive(chain([in_head(head_of(data))], pieces), MemoryBudget(HERE))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert received.content.map() == data
    assert peak < 5 * len(data)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (head_of(size=5_000_000_000), "5 GB, and this device takes at most 4: .*limits.memory"),
        (head_of(size=2**63), r"9\.22e\+09 GB"),
        (head_of(settings="x" * (MAX_SETTINGS_BYTES + 1)), "settings have more than 1 MiB"),
        (head_of(settings="ö" * (MAX_SETTINGS_BYTES // 2 + 1)), "settings have more than 1 MiB"),
        (head_of(type=FORGED), "^the message is of an unknown type: this client knows train, e"),
        (head_of(type="train.two words"), "unknown type"),
        (head_of(type=""), "unknown type"),
    ],
)
def test_a_message_is_refused_from_its_head(head: Head, words: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield in_head(head)
        raise AssertionError("the content is not read")

    received = receive(chunks(), MemoryBudget(HERE), 4e9)
    assert re.search(words, received.refused)
    assert "FAKE" not in received.refused


@pytest.mark.parametrize(
    ("size", "free", "is_refused"),
    [
        (MEMORY_FILE_BYTES + 1, 2 * MEMORY_FILE_BYTES + 1, True),
        (MEMORY_FILE_BYTES + 1, 2 * MEMORY_FILE_BYTES + 2, False),
        (MEMORY_FILE_BYTES, 0, False),
    ],
)
def test_a_message_in_a_file_leaves_half_of_the_disk_free(
    monkeypatch: pytest.MonkeyPatch, size: int, free: int, is_refused: bool
) -> None:
    usage = type(shutil.disk_usage(HERE))(total=2**50, used=2**50 - free, free=free)
    monkeypatch.setattr(shutil, "disk_usage", {HERE: usage}.__getitem__)
    begun = [in_head(head_of(size=size))]
    if is_refused:
        received = receive(begun, MemoryBudget(HERE))
        assert "0.0671 GB, more than half of the free space on the disk" in received.refused
    else:
        with pytest.raises(IncompleteError, match="did not come whole"):
            receive(begun, MemoryBudget(HERE))


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "train.personal"])
def test_flowers_types_and_those_of_an_own_handler_are_taken(kind: str) -> None:
    head = head_of(type=kind)
    received = receive([in_head(head, b"model")], MemoryBudget(HERE))
    assert (received.head, received.content.map(), received.refused) == (head, b"model", "")


def test_a_message_that_cannot_be_kept_is_incomplete(tmp_path: Path) -> None:
    data = bytes(SMALL_BYTES + 1)
    nowhere = MemoryBudget(tmp_path / "missing", memory=0)
    words = f"^a message of {len(data)} bytes cannot be kept \\(No such file or directory\\)$"
    with pytest.raises(IncompleteError, match=words):
        receive([in_head(head_of(data)), data], nowhere)


def test_a_message_ends_at_its_size_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is cancelled: a server that goes on sending is not listened to."""
    monkeypatch.setattr(fleet_calls, "FIRST_PAUSE", 0.01)
    taken = list[int]()

    def send() -> Iterator[bytes]:
        yield in_head(head_of())
        lying.replies.append(Head())  # the next call is refused
        for number in range(4000):
            taken.append(number)
            yield bytes(CHUNK_BYTES)

    lying = Lying(send)
    with lying.calls() as calls, pytest.raises(RefusedError, match="that was all"):
        calls.next("")
    assert len(taken) < 100


def test_a_slow_line_has_time_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(20))

    def slowly() -> Iterator[bytes]:
        yield in_head(head_of(data))
        for value in data:
            time.sleep(0.1)
            yield bytes([value])

    for name in ("HELD_SECONDS", "ANSWER_SECONDS", "CHUNK_SECONDS", "CHUNK_CHECK_SECONDS"):
        monkeypatch.setattr(fleet_calls, name, 0.4)
    with Lying(slowly).calls() as calls:
        assert calls.next("").content.map() == data


def test_a_server_that_stops_sending_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls_made = list[int]()

    def stopping() -> Iterator[bytes]:
        calls_made.append(1)
        if len(calls_made) > 1:
            yield in_head(head_of(), b"model")
        else:
            yield in_head(head_of())
            time.sleep(3)

    for name in ("HELD_SECONDS", "CHUNK_SECONDS", "CHUNK_CHECK_SECONDS"):
        monkeypatch.setattr(fleet_calls, name, 0.2)
    with Lying(stopping).calls() as calls:
        assert calls.next("").content.map() == b"model"


# Texts of the server ------------------------------------------------------------------------------


class Idle:
    runs = False

    def answer(self, task: object, id: str) -> None:
        raise AssertionError("a refused message reaches no app")


def assert_nothing_forged(written: str) -> None:
    """Assert that a text has no control character, and no line that its writer did not begin."""
    assert not re.search(r"[^\n -~\xa0-\U0010ffff]|\u202e", written)
    assert not re.search(r"^(fairbloom client: )?connected as client FAKE", written, re.MULTILINE)


def test_no_text_of_a_server_forges_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("fairbloom client: %(message)s"))
    caplog.set_level(logging.INFO, log.name)  # it also forgets which levels were off
    lying = Lying(lambda: iter([in_head(head_of(type=FORGED, id=FORGED[5:]))]), FORGED * 99)
    kept = (Contexts(str(tmp_path)), KeptReply(str(tmp_path)), AuditLog(tmp_path))
    log.addHandler(handler)
    try:
        with lying.calls() as calls, pytest.raises(RefusedError):
            Session("a", calls, Idle(), *kept).serve()
    finally:
        log.removeHandler(handler)
    said = written.getvalue()
    assert_nothing_forged(said)
    assert len(said) < 3000
    assert "connected as client a\n" in said
    assert lying.replies[0].code == ErrorCode.INVALID_FAB
    assert "FAKE" not in lying.replies[0].reason
    (noted,) = read_entries(tmp_path)
    assert noted["refused"] == lying.replies[0].reason


def test_a_refusal_of_the_server_is_one_line(said: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    for number in range(200):
        outage.fault(f"{FORGED} {number}")
    lines = "\n".join({*said.messages})
    assert_nothing_forged(lines)
    assert len(lines.splitlines()) == MAX_FAULTS
    outage.end()
    said.clear()
    outage.fault(f"{FORGED} 0")
    assert said.messages  # of another outage, it is said again


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_seconds_that_are_no_time_end_no_worker(seconds: float, home: Path) -> None:
    write_version(home, 1)
    task = task_of("reply")
    head = Head.FromString(task.head)
    head.seconds = seconds
    answered = answer(
        Installed("tried_app:app"), NODE, replace(task, head=bytes(head.SerializeToString()))
    )
    assert content_of(answered)["metrics"]["version"] == 1

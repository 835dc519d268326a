"""What our code copies of a message on its way: the table in `fairbloom.deploy.fleet`."""

import hashlib
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from fairbloom.deploy import fleet
from fairbloom.deploy.fleet import passing
from fairbloom.deploy.fleet.calls import Calls, Outage, receive
from fairbloom.deploy.fleet.mailbox import Content, Envelope, Mailbox, MemoryBudget, Reply
from fairbloom.deploy.fleet.messages import CHUNK_BYTES, Buffer, in_chunks, slices
from fairbloom.deploy.fleet.session import KeptReply
from fairbloom.deploy.fleet.wire_pb2 import Head, Taken
from fairbloom.recorddict import deserialize, read_values, serialize, serialize_in_pieces
from fairbloom.system import versions

SIZE = 32 << 20
WEIGHTS = Array(np.ones(SIZE // 4, np.float32))
MODEL = RecordDict({"arrays": ArrayRecord({"weights": WEIGHTS})})
WHOLE = serialize(MODEL)
CHUNKS = [bytes(piece) for piece in slices(WHOLE)]
HEAD = Head(id="1", type="train", size=len(WHOLE), sha256=hashlib.sha256(WHOLE).digest())


def pass_on(pieces: Sequence[Buffer], place: Path) -> Buffer:
    """Return what another process would receive."""
    ours, theirs = Pipe()
    with ours, theirs:
        sender = threading.Thread(target=passing.send, args=(ours, "", pieces, str(place)))
        sender.start()
        received = passing.receive(theirs)[1]
        sender.join()
    return received


def take(chunks: Iterable[bytes]) -> None:
    """Take chunks as gRPC does, which frees each once it is sent."""
    assert sum(map(len, chunks)) >= SIZE


def mapped(place: Path) -> Buffer:
    return pass_on([WHOLE], place)


def run_to_server(content: Buffer, place: Path) -> object:
    box = Mailbox(MemoryBudget(place))
    box.store(pass_on(serialize_in_pieces(MODEL), place))
    return box


def server_to_device(content: Buffer, place: Path) -> object:
    return take(in_chunks(HEAD, Content.of(MemoryBudget(place), content).pieces()))


def in_the_device(content: Buffer, place: Path) -> object:
    first, *rest = in_chunks(HEAD, [b""])
    return receive([first, *rest, *CHUNKS])


def session_to_worker(content: Buffer, place: Path) -> object:
    arrays = deserialize(pass_on([content], place))
    return read_values(arrays.array_records["arrays"]["weights"])


def worker_to_session(content: Buffer, place: Path) -> object:
    return pass_on(serialize_in_pieces(MODEL), place)


def device_to_server(content: Buffer, place: Path) -> object:
    kept = KeptReply(str(place))
    kept.save(HEAD, content)
    return take(in_chunks(HEAD, slices(kept.data)))


def answered(box: Mailbox, budget: MemoryBudget) -> Mailbox:
    """Return a mailbox with a message that is answered by the model."""
    box.begin(1)
    digest = box.store(b"model")
    box.send(1, [Envelope("1", "a", 1, "", "train", digest, 60.0, kept=True)])
    message = box.next("a")
    assert message is not None
    reply = Content(budget)
    for chunk in CHUNKS:
        reply.append(chunk)
    box.answer(message, Reply(reply))
    return box


def in_the_server(content: Buffer, place: Path) -> object:
    budget = MemoryBudget(place)
    return answered(Mailbox(budget), budget)


def in_the_server_beyond_its_memory(content: Buffer, place: Path) -> object:
    budget = MemoryBudget(place, memory=SIZE // 2)
    return answered(Mailbox(budget), budget)


def server_to_run(content: Buffer, place: Path) -> object:
    budget = MemoryBudget(place)
    box = answered(Mailbox(budget), budget)
    ((found, _), pieces) = box.collect(["1"])
    arrays = deserialize(pass_on(pieces, place)[: found[0].size])
    return read_values(arrays.array_records["arrays"]["weights"])


# for each hop: copies in files, copies in memory as a whole, and whether pieces become bytes
HOPS: dict[Callable[[Buffer, Path], object], tuple[int, int, int]] = {
    run_to_server: (1, 0, 0),
    server_to_device: (0, 0, 1),
    in_the_device: (0, 1, 0),
    session_to_worker: (1, 0, 0),
    worker_to_session: (1, 0, 0),
    device_to_server: (1, 0, 1),
    in_the_server: (0, 0, 0),
    in_the_server_beyond_its_memory: (1, 0, 0),
    server_to_run: (1, 0, 0),
}


@pytest.mark.parametrize("hop", HOPS, ids=lambda hop: hop.__name__)
def test_a_hop_copies_as_often_as_the_table_says(
    hop: Callable[[Buffer, Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = mapped(tmp_path)
    written = list[int]()
    fill = passing.fill
    seal = versions.write_sealed

    def count_fill(file: Any, pieces: Sequence[Buffer]) -> Any:
        written.extend(map(len, pieces))
        return fill(file, pieces)

    def count_seal(file: Path, *pieces: Any, **options: Any) -> None:
        written.extend(map(len, pieces))
        seal(file, *pieces, **options)

    for module in ("passing", "mailbox"):
        monkeypatch.setattr(f"fairbloom.deploy.fleet.{module}.fill", count_fill)
    monkeypatch.setattr("fairbloom.deploy.fleet.session.write_sealed", count_seal)
    tracemalloc.start()
    made = hop(content, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    files, whole, pieces = HOPS[hop]
    assert round(sum(written) / SIZE) == files
    # a piece, the one before it, and what reallocation adds to a growing buffer
    assert whole * SIZE <= peak < whole * SIZE * 9 / 8 + (1 + 2 * pieces) * CHUNK_BYTES
    del made


def test_a_device_hashes_a_reply_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[int]()
    sha256 = hashlib.sha256

    def count(data: Buffer = b"") -> object:
        hashed.append(len(data))
        return sha256(data)

    def send(chunks: Iterable[bytes], timeout: float) -> Taken:
        take(chunks)
        return Taken()

    monkeypatch.setattr(hashlib, "sha256", count)
    kept = KeptReply(str(tmp_path))
    kept.save(Head(id="1", run=1), WHOLE)
    calls = Calls("nowhere:1", grpc.ssl_channel_credentials(), b"", Outage(), lambda: None)
    monkeypatch.setattr(calls, "_reply", send)
    calls.reply(kept.head, kept.data)
    calls.close()
    assert hashed == [len(WHOLE)]
    assert kept.head.sha256 == HEAD.sha256


def test_the_table_has_these_numbers() -> None:
    table = re.findall(r"^\| ([a-z ]+?) +\| (\d) ", str(fleet.__doc__), re.M)
    measured = {hop.__name__.replace("_", " "): sum(copies) for hop, copies in HOPS.items()}
    del measured["in the server beyond its memory"]  # stands in the line of "in the server"
    assert {hop: int(copies) for hop, copies in table} == measured
    assert max(measured.values()) == 2

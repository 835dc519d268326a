"""What our code copies of a message on its way: the table in `fairbloom.deploy.fleet`.

Each command on a folder with each damage answers or prints one line, never a traceback.
"""

import re
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
import pytest
from blake3 import blake3
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from typer.main import get_command

from fairbloom.cli.deploy import app
from fairbloom.deploy import fleet
from fairbloom.deploy.fleet.calls import Calls, Outage, Received, receive
from fairbloom.deploy.fleet.content import (
    Content,
    MemoryBudget,
    StoredContent,
    fill,
    open_on_disk,
    write,
)
from fairbloom.deploy.fleet.grid import RunGrid
from fairbloom.deploy.fleet.mailbox import Collected, Envelope, Mailbox, Reply
from fairbloom.deploy.fleet.messages import (
    CHUNK_BYTES,
    Buffer,
    Start,
    in_chunks,
    node_id_of,
    slices,
)
from fairbloom.deploy.fleet.passing import ANSWER_FILE, receive as receive_passed, send
from fairbloom.deploy.fleet.session import KeptReply
from fairbloom.deploy.fleet.wire_pb2 import Head, Taken
from fairbloom.errors import FairbloomError
from fairbloom.protocol.version import PROTOCOL
from fairbloom.recorddict import deserialize, read_values, serialize, serialize_in_pieces

SIZE = 32 << 20
WEIGHTS = Array(np.ones(SIZE // 4, np.float32))
MODEL = RecordDict({"arrays": ArrayRecord({"weights": WEIGHTS})})
WHOLE = serialize(MODEL)
CHUNKS = [bytes(piece) for piece in slices(WHOLE)]
HEAD = Head(id="1", type="train", protocol=PROTOCOL, size=len(WHOLE), digest=blake3(WHOLE).digest())
NAMES = {node_id_of(name): name for name in "abc"}


def pass_on(content: Content) -> Content:
    """Return what another process would receive."""
    ours, theirs = Pipe()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, "", [content]))
        sender.start()
        _, (received,) = receive_passed(theirs)
        sender.join()
    return received


def written(pieces: Sequence[Buffer], place: Path) -> Content:
    return write(pieces, lambda: open_on_disk(str(place)))


def take(chunks: Iterable[bytes]) -> None:
    """Take chunks as gRPC does, which frees each once it is sent."""
    assert sum(map(len, chunks)) >= SIZE


def values_in(content: Content) -> object:
    return read_values(deserialize(content.map()).array_records["arrays"]["weights"])


def run_to_server(content: Content, place: Path) -> object:
    box = Mailbox(MemoryBudget(place))
    box.store(pass_on(written(serialize_in_pieces(MODEL), place)))
    return box


def server_to_device(content: Content, place: Path) -> None:
    take(in_chunks(HEAD, content.pieces()))


def in_the_device(content: Content, place: Path) -> Received | None:
    first, *rest = in_chunks(HEAD, [b""])
    return receive([first, *rest, *CHUNKS], MemoryBudget(place))


def session_to_worker(content: Content, place: Path) -> object:
    return values_in(pass_on(content))


def worker_to_session(content: Content, place: Path) -> object:
    file = place / ANSWER_FILE
    kept = KeptReply(str(place))
    kept.save(HEAD, pass_on(write(serialize_in_pieces(MODEL), lambda: FileIO(file, "x+"), 0)))
    return kept


def device_to_server(content: Content, place: Path) -> None:
    take(in_chunks(HEAD, content.pieces()))


def answered(box: Mailbox, budget: MemoryBudget) -> Mailbox:
    """Return a mailbox with a message that is answered by the model."""
    box.begin(1)
    box.send(1, [Envelope("1", "a", 1, "", "train", box.store(Content(b"model")), 60.0, kept=True)])
    message = box.next("a")
    assert message is not None
    reply = StoredContent(budget, len(WHOLE))
    for chunk in CHUNKS:
        reply.append(chunk)
    box.answer(message, Reply(reply))
    return box


def in_the_server(content: Content, place: Path) -> object:
    budget = MemoryBudget(place)
    return answered(Mailbox(budget), budget)


def in_the_server_beyond_its_memory(content: Content, place: Path) -> object:
    budget = MemoryBudget(place, memory=SIZE // 2)
    return answered(Mailbox(budget), budget)


def server_to_run(content: Content, place: Path) -> object:
    return values_in(pass_on(content))


# for each hop: copies in files, whether pieces become bytes, and digests
HOPS: dict[Callable[[Content, Path], object], tuple[int, int, int]] = {
    run_to_server: (1, 0, 1),
    server_to_device: (0, 1, 0),
    in_the_device: (1, 0, 1),
    session_to_worker: (0, 0, 0),
    worker_to_session: (1, 0, 1),
    device_to_server: (0, 1, 0),
    in_the_server: (1, 0, 1),
    in_the_server_beyond_its_memory: (1, 0, 1),
    server_to_run: (0, 0, 0),
}


Take = Callable[[Iterable[bytes]], object]


class RunOfThree(RunGrid):
    """A run of which three clients answer each message at once, with the model."""

    def _call(self, name: str, *arguments: Any, content: Sequence[Content] = ()) -> Any:
        if name == "collect":
            return ([Collected(id) for id in arguments[0]], False), [Content(WHOLE)] * 3
        return {"names": NAMES, "store": ("digest", "")}.get(name), []


def run_process(place: Path, take: Take) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        grid = RunOfThree(theirs, 7, str(place))
        for reply in grid.pull_messages(
            grid.push_messages([Message(MODEL, node, MessageType.TRAIN) for node in NAMES])
        ):
            read_values(reply.content.array_records["arrays"]["weights"])


def daemon(place: Path, take: Take) -> None:
    budget = MemoryBudget(place)
    box = Mailbox(budget)
    box.begin(1)
    digest = box.store(pass_on(model_in(place / "model")))
    box.send(1, [Envelope(each, each, 1, "", "train", digest, 60.0, kept=True) for each in "abc"])
    for device in "abc":
        message = box.next(device)
        take(in_chunks(Head(digest=message.content.digest()), message.content.pieces()))
        reply = StoredContent(budget, len(WHOLE))
        for chunk in CHUNKS:
            reply.append(chunk)
        assert reply.digest() == HEAD.digest
        box.answer(message, Reply(reply))
    for content in box.collect("abc")[1]:
        pass_on(content)


def session(place: Path, take: Take) -> None:
    pass_on(in_the_device(Content(), place).content)
    kept = KeptReply(str(place))
    kept.save(Head(), pass_on(model_in(place / ANSWER_FILE)))
    take(in_chunks(kept.head, kept.content.pieces()))


def worker(place: Path, take: Take) -> None:
    values_in(model_in(place / "model"))
    write(serialize_in_pieces(MODEL), lambda: FileIO(place / ANSWER_FILE, "x+"), 0)


def model_in(file: Path) -> Content:
    """Return the model in a file, which another process has written."""
    file.write_bytes(WHOLE)
    return Content(file=FileIO(file))


# For each process in a round of three devices: how often it takes the digest of a model, copies a
# model into a file, and into pieces for gRPC.
PROCESSES: dict[Callable[[Path, Take], None], tuple[int, int, int]] = {
    run_process: (0, 1, 0),
    daemon: (1 + 3, 3, 3),
    session: (1 + 1, 1, 1),
    worker: (0, 1, 0),
}


def count_hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the sizes of all pieces that the port hashes from now on."""
    hashed = list[int]()

    class Counted:
        def __init__(self, data: Buffer = b"") -> None:
            self._hash = blake3()
            self.digest = self._hash.digest
            self.update(data)

        def update(self, piece: Buffer) -> None:
            hashed.append(len(piece))
            self._hash.update(piece)

    for module in ("deploy.fleet.content", "system.versions"):
        monkeypatch.setattr(f"fairbloom.{module}.blake3", Counted)
    return hashed


def count_filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the sizes of all pieces that are copied into files from now on."""
    filled = list[int]()

    def count(file: Any, pieces: Sequence[Buffer]) -> Any:
        filled.extend(map(len, pieces))
        return fill(file, pieces)

    monkeypatch.setattr("fairbloom.deploy.fleet.content.fill", count)
    return filled


@pytest.mark.parametrize("hop", HOPS, ids=lambda hop: hop.__name__)
def test_a_hop_copies_as_often_as_the_table_says(
    hop: Callable[[Content, Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = written([WHOLE], tmp_path)
    hashed = count_hashed(monkeypatch)
    filled = count_filled(monkeypatch)
    tracemalloc.start()
    made = hop(content, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    files, _, digests = HOPS[hop]
    assert round(sum(filled) / SIZE) == files
    assert round(sum(hashed) / SIZE) == digests
    assert peak < 3 * CHUNK_BYTES  # a piece, and the one before it
    del made


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.__name__)
def test_what_a_process_hashes_and_copies_in_a_round(
    process: Callable[[Path, Take], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = count_hashed(monkeypatch)
    filled = count_filled(monkeypatch)
    taken = list[int]()
    process(tmp_path, lambda chunks: taken.extend(map(len, chunks)))
    counts = tuple(round(sum(sizes) / SIZE, 2) for sizes in (hashed, filled, taken))
    assert counts == PROCESSES[process]


@pytest.mark.parametrize("size", [1000, len(WHOLE)])
def test_a_device_hashes_a_reply_once(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = count_hashed(monkeypatch)

    def send(chunks: Iterable[bytes], timeout: float) -> Taken:
        assert sum(map(len, chunks)) >= size
        return Taken()

    kept = KeptReply(str(tmp_path))
    kept.save(Head(id="1", run=1), Content(WHOLE[:size]))
    calls = Calls(
        "nowhere:1", grpc.ssl_channel_credentials(), Start(b""), Outage(), lambda: None, tmp_path
    )
    monkeypatch.setattr(calls, "_reply", send)
    calls.reply(kept.head, kept.content)
    calls.close()
    assert size <= sum(hashed) < size + 200  # the head has a digest of its own
    assert kept.head.digest == blake3(WHOLE[:size]).digest()


def test_the_table_has_these_numbers() -> None:
    table = re.findall(r"^\| ([a-z ]+?) +\| (\d) +\| (\d) ", str(fleet.__doc__), re.M)
    measured = {
        hop.__name__.replace("_", " "): (files + pieces, digests)
        for hop, (files, pieces, digests) in HOPS.items()
    }
    del measured["in the server beyond its memory"]  # stands in the line of "in the server"
    assert {hop: (int(copies), int(digests)) for hop, copies, digests in table} == measured
    assert {max(counts) for counts in zip(*measured.values(), strict=True)} == {1}


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def swap(old: str, new: str) -> Callable[[Path], None]:
    """Return a change of the client's file."""

    def change(folder: Path) -> None:
        file = folder / "clients" / "a.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    )


def other_kind(name: str) -> Callable[[Path], None]:
    """Replace a file by a folder, or a folder by a file."""

    def change(folder: Path) -> None:
        is_folder = (folder / name).is_dir()
        gone(name)(folder)
        (folder / name).touch() if is_folder else (folder / name).mkdir()

    return change


def link_to_itself(folder: Path) -> None:
    gone("federation.toml")(folder)
    (folder / "federation.toml").symlink_to("federation.toml")


FILES = (
    "federation.toml",
    "clients/a.toml",
    "ca.crt",
    "ca.key",
    "server.crt",
    "server.key",
    "commands.jsonl",
    "state/now.json",
    "state/runs/7/run.toml",
    "state/runs/7/folder",
)
FOLDERS = ("clients", "state", "bundles", "bundles/a", "state/runs", "state/runs/7")
DAMAGE: dict[str, Callable[[Path], None]] = {
    **{f"{name} is gone": gone(name) for name in (*FILES, *FOLDERS)},
    **{f"{name} is of another kind": other_kind(name) for name in (*FILES, *FOLDERS)},
    **{f"{name} is empty": put(name, b"") for name in FILES},
    **{f"{name} is no text": put(name, b"\xff\xfe\x00") for name in FILES},
    **{f"{name} is other text": put(name, b"= what\n") for name in FILES},
    "the address is a number": put("federation.toml", b"server = 5\n"),
    "the address is a table": put("federation.toml", b"[server]\na = 1\n"),
    "the address lacks its port": put("federation.toml", b'server = "x"\n'),
    "the port is too high": put("federation.toml", b'server = "a:99999"\n'),
    "listen is a number": put("federation.toml", b'server = "a:1"\nlisten = 3\n'),
    "a key is unknown": put("federation.toml", b'server = "a:1"\nsuperlink = "a:1"\n'),
    "federation.toml links to itself": link_to_itself,
    "a partition is not a number": swap("partition = 0", 'partition = "zero"'),
    "a client has another's name": swap('name = "a"', 'name = "b"'),
    "a bundle has a folder in it": lambda folder: (folder / "bundles" / "a" / "sub").mkdir(),
}
COMMAND = get_command(app)
COMMANDS = (
    "status",
    "doctor",
    "stop",
    "renew",
    "enroll b",
    "enroll c --request .",
    "enroll d --request nowhere",
    "enroll a",
    "revoke a",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with one client and one waiting run."""
    folder = tmp_path_factory.mktemp("whole") / "federation"
    run("init", str(folder), "--host", "fl.example.org")
    run("enroll", "a", "--dir", str(folder))
    place = folder / "state" / "runs" / "7"
    place.mkdir(parents=True)
    order = 'app = "x:y"\ndistribution = "x"\nversion = "1"\n[settings]\n'
    for name, text in (("run.toml", order), ("folder", "/nowhere")):
        (place / name).write_text(text)
    (folder / "state" / "now.json").write_text('{"at": 0.0, "online": {}, "seen": {}, "runs": []}')
    return folder


def run(*words: str) -> None:
    """Run a command as the command line does, but let its errors through."""
    COMMAND.main(list(words), standalone_mode=False)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_folder_is_one_line(how: str, whole: Path, tmp_path: Path, command: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "federation")
    DAMAGE[how](folder)
    try:
        run(*command.split(), "--dir", str(folder))
    except FairbloomError as error:
        assert "\n" not in str(error)  # noqa: PT017 (which commands are refused differs)
        assert len(str(error)) > 20  # noqa: PT017
    except click.exceptions.Exit as end:
        assert end.exit_code in (0, 1)  # noqa: PT017

"""Strangers without a certificate: the server stays small, and a run continues.

The server has the usual limit of open files.

An enrolled device that speaks the protocol by itself: it floods, and answers for another one.

A deployed device under refused runs: what left it stays in its owner's log.

Clients with a certificate, good or revoked, that call the port as often as they can.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.deployment import Deployment, federation, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from benchmarks.processes import grown_memory, resident_memory
from fairbloom.deploy.fleet.admission import PAUSE_SECONDS
from fairbloom.deploy.fleet.faults import SAY_SECONDS
from fairbloom.deploy.fleet.messages import SERVICE, in_chunks
from fairbloom.deploy.fleet.port import OPTIONS
from fairbloom.deploy.fleet.wire_pb2 import Drop, Head, Taken, Working
from tests.attacks.strangers import PREFACE, Stranger, crowd
from tests.attacks.unhurried import start_unhurried_client
from tests.client.hospital import SCHEMA, write_hospital
from tests.system.helpers import at_once

pytestmark = pytest.mark.slow

MB = 1 << 20
ALLOWED_MB = 150
# MB of a flood's memory that a server may still hold a minute later.
GIVEN_BACK_MB = 60
IDLE_MB = 100
IDLE = 3000
HALF_OPEN = 1500
FILES = 1024
ENDLESS: dict[str, Any] = {
    "clients": 1,
    "fraction": 1.0,
    "num-rounds": 100_000,
    "evaluate-every": 0,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with one client in an endless run, and another client that is not started."""
    with federation(tmp_path_factory.mktemp("strangers") / "home") as runtime:
        runtime.stop(runtime.server)
        runtime.start_server("prlimit", f"--nofile={FILES}:{FILES}")
        runtime.enroll("client-0", "late")
        start_unhurried_client(runtime, "client-0")
        runtime.submitting(
            {**ENDLESS, "training-clients": "client-0", "out": str(runtime.home / "run")}
        )
        wait_for_rounds(runtime.home / "run", 2)
        yield runtime


@pytest.fixture
def stranger(there: Deployment) -> Iterator[Stranger]:
    made = Stranger(there.fleet, there.folder / "ca.crt")
    yield made
    made.close()


@contextlib.contextmanager
def unharmed(there: Deployment, megabytes: float = ALLOWED_MB) -> Iterator[None]:
    """Assert that the block costs little memory, and stops neither the run nor the operator."""
    with grown_memory(there.server.pid) as grown:
        yield
        assert "client-0" in there.online()
        wait_for_rounds(there.home / "run", len(rounds(there.home / "run")) + 2)
    print(f"the server's memory grew by {grown[0]:.0f} MB")
    assert grown[0] < megabytes
    assert there.server.poll() is None
    assert not any(row["missing"] or row["refused"] for row in rounds(there.home / "run"))


def test_calls_without_a_certificate_reach_nobody(there: Deployment, stranger: Stranger) -> None:
    said = list[bytes]()

    def call() -> None:
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            said.append(stranger.say(PREFACE + bytes(60_000)))

    with unharmed(there):
        at_once(8, call)
    print(f"{len(said)} calls")
    assert len(said) > 50
    assert {*said} == {b""}


def test_garbage_and_endless_words_end_nothing(there: Deployment, stranger: Stranger) -> None:
    def talk() -> None:
        with contextlib.suppress(OSError):
            connection = stranger.plain()
            for _ in range(200):
                connection.sendall(os.urandom(10_000))

    with unharmed(there):
        at_once(40, talk)


@pytest.mark.parametrize("kind", ["silent", "shaken"])
def test_idle_connections_keep_no_client_out(there: Deployment, kind: str) -> None:
    before = there.log(there.server)
    assert f"this process may have {FILES} open files" in before
    authority = str(there.folder / "ca.crt")
    module = "tests.attacks.strangers"
    with unharmed(there, IDLE_MB), crowd(module, IDLE, str(there.fleet), authority, kind):
        there.start_client("late")
        there.wait_for_clients("late")
        there.stop(there.clients.pop("late"))
    said = there.log(there.server)[len(before) :].splitlines()
    assert len(said) <= 1
    assert all(f"all {FILES - 256} connections of the port are in use" in line for line in said)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.001)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def test_a_handshake_that_does_not_end_is_ended(there: Deployment, stranger: Stranger) -> None:
    """Neither silence nor a hello of one byte at a time, which would take minutes, keeps it open."""
    hello = bytes.fromhex("1603010200010001fc0303") + bytes(500)
    silent = stranger.plain()
    slow = stranger.plain()
    sent = 0
    began = time.monotonic()
    with unharmed(there):
        while sent < len(hello) and (is_open(silent) or is_open(slow)):
            with contextlib.suppress(OSError):
                slow.sendall(hello[sent : sent + 1])
            sent += 1
            time.sleep(0.2)
        print(f"closed after {sent} bytes and {time.monotonic() - began:.1f} s")
    assert sent < len(hello)


def test_half_open_handshakes_are_bounded_and_given_back(there: Deployment) -> None:
    before = resident_memory(there.server.pid)
    authority = str(there.folder / "ca.crt")
    with unharmed(there):
        for _ in range(3):
            with crowd(
                "tests.attacks.strangers", HALF_OPEN, str(there.fleet), authority, "half-open"
            ):
                pass
    wait_until(lambda: resident_memory(there.server.pid) - before < GIVEN_BACK_MB, seconds=90)


def test_all_of_it_is_a_few_lines_in_the_log(there: Deployment) -> None:
    assert len(there.log(there.server).splitlines()) < 40


@pytest.fixture(scope="module")
def with_mallory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with an honest client in an endless run, and an enrolled hostile device."""
    with federation(tmp_path_factory.mktemp("nodes") / "home") as runtime:
        runtime.enroll("honest", "mallory")
        start_unhurried_client(runtime, "honest")
        runtime.submitting(
            {
                **ENDLESS,
                "min-clients": 1,
                "training-clients": "honest",
                "out": str(runtime.home / "run"),
            }
        )
        wait_for_rounds(runtime.home / "run", 2)
        yield runtime


class Mallory:
    """The calls of an enrolled device."""

    def __init__(self, with_mallory: Deployment) -> None:
        bundle = with_mallory.bundle("mallory")
        parts = [(bundle / name).read_bytes() for name in ("ca.crt", "key", "certificate")]
        self.channel = grpc.secure_channel(
            f"localhost:{with_mallory.fleet}", grpc.ssl_channel_credentials(*parts)
        )
        self.beat: Any = self.channel.unary_unary(
            f"/{SERVICE}/Beat", Working.SerializeToString, Drop.FromString
        )
        self.reply: Any = self.channel.stream_unary(f"/{SERVICE}/Reply", None, Taken.FromString)


def honest_messages(with_mallory: Deployment) -> tuple[int, list[str]]:
    """Return the run's number, and the start of each id of the honest client's messages."""
    words = [
        line.split()
        for line in with_mallory.log(with_mallory.clients["honest"]).splitlines()
        if "received train" in line
    ]
    return int(words[-1][-1]), [each[5] for each in words]


def test_a_flood_of_calls_ends_neither_the_run_nor_the_server(with_mallory: Deployment) -> None:
    run, _ = honest_messages(with_mallory)
    over = time.monotonic() + 6.0
    made = [0]

    def flood() -> None:
        mallory = Mallory(with_mallory)
        while time.monotonic() < over:
            with contextlib.suppress(grpc.RpcError):
                mallory.beat(Working(session=b"m" * 16, id="x", run=run), timeout=60)
            with contextlib.suppress(grpc.RpcError):
                head = Head(id="x", run=run, session=b"m" * 16, size=8_000_000)
                mallory.reply(in_chunks(head, [bytes(1 << 20)] * 8), timeout=60)
            made[0] += 2

    before = len(rounds(with_mallory.home / "run"))
    at_once(8, flood)
    wait_for_rounds(with_mallory.home / "run", before + 3)
    rows = rounds(with_mallory.home / "run")[before:]
    assert made[0] > 50
    assert all(row["replies_used"] == "1" and not row["missing"] for row in rows)
    assert with_mallory.server.poll() is None


SETTINGS: dict[str, Any] = {
    "task": "csv",
    "clients": 1,
    "fraction": 1.0,
    "num-rounds": 1,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def lund(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with federation(tmp_path_factory.mktemp("deployed") / "home") as runtime:
        runtime.enroll("lund")
        write_hospital(runtime.home / "data")
        runtime.start_client("lund", "--data-dir", str(runtime.home / "data"))
        runtime.wait_for_clients("lund")
        yield runtime


def submit(lund: Deployment, schema: str, *, accepted: bool = True) -> None:
    """Submit a run with a schema and a folder of its own; one that is not accepted is stopped."""
    number = len([*lund.home.glob("schema-*.toml")])
    path = lund.home / f"schema-{number}.toml"
    path.write_text(schema)
    submitted = lund.submitting(
        {**SETTINGS, "schema": str(path), "out": str(lund.home / f"run-{number}")}
    )
    if not accepted:
        lund.wait_for_words(submitted, "waits for clients that refuse it: ")
        lund.fairbloom("deploy", "stop", lund.submitted_run())
    lund.wait_for_end(submitted, code=0 if accepted else 130)


def owner(lund: Deployment, *words: str) -> str:
    command, *rest = words
    return lund.fairbloom("client", command, str(lund.home / "state-lund"), *rest).stdout


def files_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def test_refused_runs_leave_what_was_sent_in_the_log(lund: Deployment) -> None:
    submit(lund, SCHEMA, accepted=False)  # yet
    assert "can reveal single rows" in owner(lund, "accept", "--yes")
    submit(lund, SCHEMA)
    before = owner(lund, "log")
    for number in range(3):
        submit(lund, f"{SCHEMA}# {str(number) * 950_000}\n", accepted=False)
    after = owner(lund, "log")
    assert "asked: train; sent: arrays: " in after
    assert after.splitlines()[0] == before.splitlines()[0]
    assert after.count("the run's schema is not one that this device's owner has accepted") == 4
    assert files_of(lund.home / "state-lund") < 1_000_000


MODULE = "tests.attacks.callers"
SHORT_ROUNDS: dict[str, Any] = {
    "clients": 1,
    "fraction": 1.0,
    "num-rounds": 1_000_000,
    "evaluate-every": 0,
    "device": "cpu",
    "local-epochs": 1,
}
LIMIT = 4 * 2 + 1000
# How many calls of a connection reach the server at once.
STREAMS = dict(OPTIONS)["grpc.max_concurrent_streams"]


def too_many(two: Deployment) -> int:
    """Return how many calls of those who make too many the server has refused, as of a second
    ago."""
    now = json.loads((two.folder / "state" / "now.json").read_text())
    return int(now["refused"].get("resource exhausted", 0))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation of two with an endless run of one client, and a client that will misbehave."""
    with federation(tmp_path_factory.mktemp("callers") / "home") as runtime:
        settings = runtime.folder / "federation.toml"
        settings.write_text(settings.read_text() + "max-clients = 2\n")
        runtime.stop(runtime.server)
        runtime.start_server()
        runtime.enroll("client-0", "late", "liar")
        runtime.start_clients("client-0")
        runtime.submitting(
            {**SHORT_ROUNDS, "training-clients": "client-0", "out": str(runtime.home / "run")}
        )
        wait_for_rounds(runtime.home / "run", 2)
        yield runtime


@pytest.mark.parametrize("kind", ["parallel", "beat"])
def test_calls_without_a_pause_do_not_stop_a_run(two: Deployment, kind: str) -> None:
    began = time.monotonic()
    with crowd(MODULE, 800, str(two.fleet), str(two.bundle("liar")), kind):
        refused = too_many(two)
        before = len(rounds(two.home / "run"))
        wait_for_rounds(two.home / "run", before + 20)
        if kind == "parallel":
            wait_until(lambda: too_many(two) >= refused + 20)
        made = len(rounds(two.home / "run")) - before
        refused = too_many(two) - refused
        seconds = time.monotonic() - began
    print(f"{made} rounds and {refused} refused calls in {seconds:.0f} s")
    if kind == "parallel":  # a refusal is answered late, and said once a minute
        assert refused <= STREAMS * (seconds / PAUSE_SECONDS + 3)
        said = two.log(two.server).count("client liar calls too often")
        assert 1 <= said <= 2 + seconds / SAY_SECONDS


@pytest.mark.parametrize("state", ["enrolled", "revoked"])
def test_one_certificate_keeps_no_other_client_out(
    two: Deployment, tmp_path: Path, state: str
) -> None:
    bundle = shutil.copytree(two.bundle("liar"), tmp_path / "liar")
    if state == "revoked":
        two.fairbloom("deploy", "revoke", "liar")
    with (
        grown_memory(two.server.pid) as grown,
        crowd(MODULE, LIMIT + 100, str(two.fleet), str(bundle), "silent"),
    ):
        two.start_client("late")
        two.wait_for_clients("late")
        two.stop(two.clients.pop("late"))
        wait_for_rounds(two.home / "run", len(rounds(two.home / "run")) + 2)
        # A busy machine closes them later.
        wait_until(
            lambda: two.status()["connections"]["open"] < LIMIT / 2,
            lambda: str(two.status()["connections"]),
        )
        connections = two.status()["connections"]
    print(f"{connections}; the server's memory grew by {grown[0]:.0f} MB")
    assert connections["limit"] == LIMIT
    assert grown[0] < ALLOWED_MB
    assert "client-0" in two.online()
    assert len(two.log(two.server).splitlines()) < 10

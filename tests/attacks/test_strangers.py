"""Strangers without a certificate: the server stays small, and a run continues.

The server has the usual limit of open files.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, rounds, wait_for_rounds
from benchmarks.flower import wait_until
from benchmarks.processes import grown_memory, resident_memory
from tests.attacks.strangers import PREFACE, Stranger, crowd
from tests.attacks.unhurried import start_unhurried_client

pytestmark = pytest.mark.slow

MB = 1 << 20
ALLOWED_MB = 150
GIVEN_BACK_MB = 60
"""MB of a flood's memory that a server may still hold a minute later."""
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
        wait_for_rounds(there.home / "run", len(rounds(there.home / "run")) + 2, 60)
    print(f"the server's memory grew by {grown[0]:.0f} MB")
    assert grown[0] < megabytes
    assert there.server.poll() is None
    assert not any(row["missing"] or row["refused"] for row in rounds(there.home / "run"))


def at_once(number: int, attack: Callable[[], None]) -> None:
    threads = [threading.Thread(target=attack) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
        there.wait_for_clients("late", seconds=30.0)
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
    """Neither silence nor a hello of one byte at a time, which would take hours, keeps it open."""
    hello = bytes.fromhex("1603010200010001fc0303") + bytes(500)
    slow = [(stranger.plain(), iter(content)) for content in (hello, b"")]
    began = time.monotonic()
    with unharmed(there):
        while time.monotonic() < began + 60.0 and any(
            is_open(connection) for connection, _ in slow
        ):
            for connection, content in slow:
                with contextlib.suppress(OSError, StopIteration):
                    connection.sendall(bytes([next(content)]))
            time.sleep(0.2)
        print(f"closed after {time.monotonic() - began:.1f} s")
        assert time.monotonic() - began < 15.0
    assert [is_open(connection) for connection, _ in slow] == [False, False]


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

"""Strangers on the network, without a key: whatever they do, the server stays small, a run goes on, status answers.

The server may have 1,024 descriptors, the usual limit, and cannot have more.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

from fairbloom.deploy.flower.server.control import STATUS_PATH
from tests.attacks.strangers import SERVICES, Stranger, descriptors
from tests.attacks.unhurried import start_unhurried_client
from tests.deploy.federation import Deployment, rounds, wait_for_rounds
from tests.deploy.flower import wait_until
from tests.deploy.peer import enrolled
from tests.deploy.processes import grown_memory, resident_memory

pytestmark = pytest.mark.slow

MB = 1 << 20
ALLOWED_MB = 100
USUAL_DESCRIPTORS = 1024
GIVEN_BACK_MB = 30
"""What a server may keep of a flood's memory a minute later."""
IDLE, HALF_OPEN = 1200, 1500
ENDLESS: dict[str, Any] = {"clients": 1, "fraction": 1.0, "num-rounds": 100_000, "evaluate-every": 0, "device": "cpu"}
LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({USUAL_DESCRIPTORS}, {USUAL_DESCRIPTORS}))
os.execv(sys.argv[1], sys.argv[1:])
"""
MADE_UP = {"flwr-superexec-signature": "0" * 64, "flwr-superexec-nonce": "0" * 32, "flwr-superexec-ts": "1"}
JOIN = "/fairbloom.exchange.v1.Exchange/Join"
ACQUIRE = "/v1/runtime/acquire-task"
on_both_services = pytest.mark.parametrize("path", SERVICES.values(), ids=SERVICES)


class Few(Deployment):
    """A federation whose server may have few descriptors."""

    def start_server(self) -> None:
        self.server = self.start("python", "-c", LIMITED, str(self.scripts / "fairbloom"), "server")
        self.wait_for_words(self.server, "fairbloom server: ready")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with one client, and an endless run."""
    runtime = Few(tmp_path_factory.mktemp("strangers") / "home")
    try:
        runtime.start_server()
        runtime.enroll("client-0")
        start_unhurried_client(runtime, "client-0")
        runtime.submitting({**ENDLESS, "out": str(runtime.home / "run")})
        wait_for_rounds(runtime.home / "run", 2)
        with descriptors(4 * IDLE):
            yield runtime
    finally:
        runtime.close()


@pytest.fixture
def fleet(there: Deployment) -> Iterator[Stranger]:
    stranger = Stranger(there.fleet, there.folder / "ca.crt")
    yield stranger
    stranger.close()


@pytest.fixture
def control(there: Deployment) -> Iterator[Stranger]:
    stranger = Stranger(there.control, there.folder / "ca.crt")
    yield stranger
    stranger.close()


@contextlib.contextmanager
def unharmed(there: Deployment) -> Iterator[None]:
    """See to it that what is done takes little memory, and holds neither the run nor the operator."""
    superlink = there.part("superlink")
    with grown_memory(superlink) as grown:
        yield
        wait_until(lambda: ask_status(there) == 200, seconds=30)
        wait_for_rounds(there.home / "run", len(rounds(there.home / "run")) + 2, 60)
    print(f"the SuperLink's memory grew by {grown[0]:.0f} MB")
    assert grown[0] < ALLOWED_MB
    assert there.part("superlink") == superlink  # it was not started again
    assert not any(row["missing"] or row["refused"] for row in rounds(there.home / "run"))


def ask_status(there: Deployment) -> int:
    """Return the answer to an operator's question for the server's status, 0 where the connection was just closed.

    Until connections of strangers are told from others by their age, a new one may be among those that are closed.
    """
    trusted = ssl.create_default_context(cafile=str(there.folder / "ca.crt"))
    asked = HTTPSConnection("127.0.0.1", there.control, timeout=60, context=trusted)
    with contextlib.closing(asked):
        token = (there.folder / "operator.token").read_text()
        try:
            asked.request("GET", STATUS_PATH, headers={"authorization": f"Bearer {token}"})
            return asked.getresponse().status
        except ConnectionResetError:
            return 0


def at_once(number: int, attack: Callable[[], None]) -> None:
    threads = [threading.Thread(target=attack) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def refused(there: Deployment) -> str:
    return there.log(there.server)


@on_both_services
def test_calls_that_stall_in_mid_message(there: Deployment, fleet: Stranger, path: str) -> None:
    def stall() -> None:
        connection = fleet.http2()
        connection.push([connection.begin(path) for _ in range(5)], 15 * MB, 30.0, whole=False)

    with unharmed(there):
        at_once(10, stall)
    assert "refused: a call of the fleet API without a key" in refused(there)


@on_both_services
def test_200_complete_calls(there: Deployment, fleet: Stranger, path: str) -> None:
    def call() -> None:
        connection = fleet.http2()
        connection.push([connection.begin(path) for _ in range(10)], 15 * MB, 60.0, whole=True)

    with unharmed(there):
        at_once(20, call)


@on_both_services
def test_a_thousand_calls_on_each_of_a_few_connections(there: Deployment, fleet: Stranger, path: str) -> None:
    def call() -> None:
        connection = fleet.http2()
        connection.push([connection.begin(path) for _ in range(1000)], 60_000, 10.0, whole=False)

    with unharmed(there):
        at_once(4, call)


def request(path: str, size: int, **headers: str) -> bytes:
    about = {"host": "localhost", "content-type": "application/x-protobuf", "content-length": str(size), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in about.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def test_900_made_up_signatures_of_a_superexec(there: Deployment, control: Stranger) -> None:
    body = bytes(1_000_000 - 1)

    def call() -> None:
        for _ in range(300):
            with contextlib.suppress(OSError):
                connection = control.tls()
                connection.settimeout(20)
                connection.sendall(request(ACQUIRE, 1_000_000, **MADE_UP, **{"flwr-superexec-body-sha256": "0" * 64}))
                connection.sendall(body)

    with unharmed(there):
        at_once(3, call)
    assert "a call of the runtime API without the credential" in refused(there)


def test_900_heads_that_stop(there: Deployment, control: Stranger) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 60_000

    def say() -> None:
        for _ in range(300):
            with contextlib.suppress(OSError):
                control.tls().sendall(head)

    with unharmed(there):
        at_once(3, say)


def test_endless_heads(there: Deployment, control: Stranger) -> None:
    def say() -> None:
        with contextlib.suppress(OSError):
            connection = control.tls()
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
            for number in range(5000):
                connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 4000))

    with unharmed(there):
        at_once(10, say)


@pytest.mark.parametrize("port", ["fleet", "control"])
@pytest.mark.parametrize("shaken", [False, pytest.param(True, marks=pytest.mark.federation)])
def test_1200_idle_connections(there: Deployment, request: Any, port: str, shaken: bool) -> None:
    stranger: Stranger = request.getfixturevalue(port)
    with unharmed(there):
        for _ in range(IDLE):
            with contextlib.suppress(OSError):  # the server takes no more for now, or has closed it already
                _ = stranger.tls("h2") if shaken else stranger.plain()
        if port == "fleet" and not shaken:
            client = enrolled(there, "client-0")
            beat = SendNodeHeartbeatRequest(node=client.node, heartbeat_interval=30.0)
            assert client.stub.SendNodeHeartbeat(beat, wait_for_ready=True, timeout=60).success  # it comes in
    assert "refused: a connection without a credential" in refused(there)


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


def test_connections_end_that_show_no_credential_in_time(there: Deployment, fleet: Stranger, control: Stranger) -> None:
    """By hello, head or body a byte at a time, each of which would take hours."""
    slow = list[tuple[socket.socket, Iterator[int]]]()
    hello = bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + bytes(500)
    for stranger in (fleet, control):
        for content in (hello, b""):
            slow.append((stranger.plain(), iter(content)))
    for content in (request(ACQUIRE, 1000), request(ACQUIRE, 1000, **MADE_UP), b"GET /health HTTP/1.1\r\nx: "):
        slow.append((control.tls(), iter(content + bytes(1000))))
    slow.append((fleet.http2()._tls, iter(b"")))
    slow.append((fleet.tls("h2"), iter(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
    until = time.monotonic() + 60.0
    with unharmed(there):
        while time.monotonic() < until and any(is_open(connection) for connection, _ in slow):
            for connection, content in slow:
                with contextlib.suppress(OSError, StopIteration):
                    connection.sendall(bytes([next(content)]))
            time.sleep(0.2)
    assert [is_open(connection) for connection, _ in slow] == [False] * len(slow)


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Deployment]:
    """A server that may have as many descriptors as the system allows."""
    runtime = Deployment(tmp_path / "home")
    try:
        runtime.start_server()
        with descriptors(4 * IDLE):
            yield runtime
    finally:
        runtime.close()


@pytest.mark.parametrize("port", ["fleet", "control"])
def test_half_open_handshakes_are_bounded_and_given_back(roomy: Deployment, port: str) -> None:
    stranger = Stranger(getattr(roomy, port), roomy.folder / "ca.crt")
    superlink = roomy.part("superlink")
    before = resident_memory(superlink)
    with grown_memory(superlink) as grown:
        for _ in range(3):
            with contextlib.suppress(OSError):
                for _ in range(HALF_OPEN):
                    stranger.half_open()
            assert ask_status(roomy) in (0, 200)
            stranger.close()
    assert grown[0] < ALLOWED_MB * 1.5
    wait_until(lambda: resident_memory(superlink) - before < GIVEN_BACK_MB, seconds=60)
    assert ask_status(roomy) == 200
    assert roomy.part("superlink") == superlink


def test_500_requests_that_are_no_http(there: Deployment, control: Stranger) -> None:
    def lines() -> int:
        return sum("is finished" not in line for line in there.log(there.server).splitlines())  # a run has its rounds

    before = lines()
    with unharmed(there):
        for _ in range(500):
            with contextlib.suppress(OSError):
                control.tls().sendall(b"\x00 no request\r\n\r\n")
    assert lines() < before + 20


def test_all_of_it_is_a_few_lines_in_the_log(there: Deployment) -> None:
    lines = [line for line in refused(there).splitlines() if "refused: " in line]
    assert 0 < len(lines) < 40
    there.fairbloom("deploy", "status")

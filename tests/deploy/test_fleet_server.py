"""The fleet API's server: whose call's body is taken in, how much of it, and whose connections last."""

import contextlib
import logging
import resource
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from grpc import StatusCode

from fairbloom.deploy import pki
from fairbloom.deploy.flower.exchange_pb2 import NextRequest
from fairbloom.deploy.flower.server import fleet_server as gate
from fairbloom.deploy.flower.server.fleet import Fleet
from fairbloom.deploy.flower.server.fleet_server import (
    LARGEST_CALL,
    SIGNATURE_HEADER,
    Pipeline,
    fleet_server,
    host_and_port,
)
from fairbloom.deploy.server import connections, long_poll
from fairbloom.deploy.server.connections import Connections
from fairbloom.deploy.server.long_poll import LongPoll
from fairbloom.deploy.server.rate_limit import CallLimit
from fairbloom.deploy.server.refusals import RefusalLog
from tests.attacks.strangers import Http2, Stranger, descriptors
from tests.deploy.flower import PATIENCE, wait_until
from tests.deploy.logged import read_events
from tests.deploy.peer import Signature, signed_head
from tests.deploy.processes import free_port
from tests.deploy.state import SuperLinkState, parts
from tests.deploy.test_fleet import Known

MB = 1 << 20
DESCRIPTORS = 1000
FLEET = [f"/flwr.proto.Fleet/{name}" for name in ("PullMessages", "PushObject", "PushMessages", "ActivateNode")]
EXCHANGE = [f"/fairbloom.exchange.v1.Exchange/{name}" for name in ("Next", "Reply")]
WAITING = {FLEET[0]: PullMessagesRequest, EXCHANGE[0]: NextRequest}
"""The calls for work of both services."""


class Shared:
    """What several servers have, one after the other: certificates and a database."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (folder / name for name in ("ca.crt", "server.crt", "server.key"))
        pki.make_authority(self.authority, folder / "ca.key")
        pki.make_server_certificate(self.authority, folder / "ca.key", self.certificate, self.key, ["localhost"], 30)
        self.link = SuperLinkState(folder / "superlink.db")


class Server:
    """A fleet API with its database, in this process, and those who call it."""

    def __init__(self, shared: "Shared", folder: Path, logged: pytest.LogCaptureFixture) -> None:
        self._logged = logged
        self.folder, self.port, self.link = folder, free_port(), shared.link
        self.authority, refusals = shared.authority, RefusalLog()
        given: Any = {"members": Known(), "refusals": refusals, "long_poll": LongPoll(), "overdue": {}}
        calls = Fleet(self.link.state, **given).calls()
        self.connections = Connections({self.port: connections.MOST_STRANGERS}, DESCRIPTORS, refusals)
        self.pipeline = Pipeline(calls, self.link.state, Known(), self.port, self.connections, refusals, CallLimit())
        files = (self.authority, shared.certificate, shared.key)
        authority, certificate, key = (file.read_bytes() for file in files)
        address = f"127.0.0.1:{self.port}"
        self.server = fleet_server(self.pipeline, address, (authority, certificate, key), self.connections.most)
        self.server.start()
        self._channels: list[grpc.Channel] = []
        self.stranger = Stranger(self.port, self.authority)

    def close(self) -> None:
        self.stranger.close()
        for channel in self._channels:
            channel.close()
        self.server.stop(0).wait()

    def node(self, compression: Any = None) -> "Caller":
        """Return a new, registered node."""
        key = ec.generate_private_key(ec.SECP384R1())
        return self.caller(key, self.link.node(public_key_to_bytes(key.public_key())), compression)

    def unknown(self) -> "Caller":
        """Return a node whose key nobody knows."""
        return self.caller(ec.generate_private_key(ec.SECP384R1()), 7)

    def caller(self, key: ec.EllipticCurvePrivateKey, node_id: int, compression: Any = None) -> "Caller":
        """Return who calls with a key, on a connection of its own."""
        channel = grpc.secure_channel(
            f"localhost:{self.port}",
            grpc.ssl_channel_credentials(self.authority.read_bytes()),
            [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
            compression,
        )
        self._channels.append(channel)
        return Caller(channel, key, node_id)

    def look_for(self, seconds: float) -> None:
        """Look after the connections for a time, as the server's thread does."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.connections.look()
            time.sleep(0.02)

    def look_until(self, condition: Callable[[], bool]) -> None:
        """Look after the connections until something is so."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until
            self.look_for(0.1)

    def refused(self) -> set[str]:
        return {each["event"] for each in read_events(self._logged.messages)}


class Caller:
    """A node's side of the fleet API."""

    def __init__(self, channel: grpc.Channel, key: ec.EllipticCurvePrivateKey, node_id: int) -> None:
        self.key, self.node = key, Node(node_id=node_id)
        self.channel = grpc.intercept_channel(channel, Signature(key))
        self.stub: Any = FleetStub(self.channel)

    def head(self) -> dict[str, str]:
        """Return what shows the key, as it is written in a call's head."""
        shown = signed_head(self.key)
        return {name: b64encode(value).decode() if isinstance(value, bytes) else value for name, value in shown.items()}

    def beat(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=30.0)
        return bool(self.stub.SendNodeHeartbeat(request, timeout=PATIENCE).success)

    def activate(self) -> Any:
        request = ActivateNodeRequest(public_key=public_key_to_bytes(self.key.public_key()), heartbeat_interval=30.0)
        return self.stub.ActivateNode(request, timeout=PATIENCE)

    def push(self, size: int) -> bool:
        request = PushObjectRequest(node=self.node, object_id="0" * 64, object_content=bytes(size))
        return bool(self.stub.PushObject(request, timeout=PATIENCE).stored)

    def pull(self, run: int, object_id: str) -> bytes | None:
        request = PullObjectRequest(node=self.node, run_id=run, object_id=object_id)
        answer = self.stub.PullObject(request, timeout=PATIENCE)
        return answer.object_content if answer.object_found else None

    def confirm(self, run: int, object_id: str) -> None:
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=object_id)
        self.stub.ConfirmMessageReceived(request, timeout=PATIENCE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def server(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Server]:
    monkeypatch.setattr(long_poll, "HELD_SECONDS", 0.01)
    made = Server(shared, tmp_path, caplog)
    yield made
    made.close()


def refusal(call: Callable[[], Any]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value


def taken_in(connection: Http2, size: int, **head: Any) -> int:
    """Return how much of a call's body a server takes in, which ends the call by itself or waits for more."""
    stream = connection.begin(**head)
    connection.push([stream], size, 3.0, whole=False)
    return connection.sent[stream]


# Without a key ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*FLEET, *EXCHANGE, "/flwr.proto.Fleet/NoSuchCall"])
def test_of_a_call_without_a_key_hardly_anything_is_taken_in(server: Server, path: str) -> None:
    connection = server.stranger.http2()
    assert taken_in(connection, 8 * MB, path=path) <= 4 * gate.AHEAD_BYTES
    assert connection.ended
    assert not connection.gone
    if not path.endswith("NoSuchCall"):
        assert server.refused() == {"refused: a call of the fleet API without a key"}


def test_a_made_up_key_and_signature_are_none(server: Server) -> None:
    stranger, registered = server.unknown(), server.node()
    for call in (lambda: stranger.push(8 * MB), stranger.beat):
        error = refusal(call)
        assert (error.code(), error.details()) == (StatusCode.UNAUTHENTICATED, "Invalid node ID")
    assert "refused: a call of the fleet API with an unregistered key" in server.refused()
    shown = registered.head() | {SIGNATURE_HEADER: b64encode(bytes(100)).decode()}
    connection = server.stranger.http2()
    assert taken_in(connection, 8 * MB, headers=shown) <= 4 * gate.AHEAD_BYTES
    assert connection.ended
    assert "refused: a call of the fleet API without a key" in server.refused()


def test_a_client_that_is_not_enrolled_is_told_so(server: Server) -> None:
    """Its key is sound, so that Flower's words come, by which it knows what to say."""
    error = refusal(server.unknown().activate)
    assert error.code() == StatusCode.FAILED_PRECONDITION
    assert "refused: an unregistered key" in server.refused()


def test_calls_that_fail_cannot_fill_the_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger chooses the path, and a client what it says."""
    stranger, node = server.unknown(), server.node()
    for number in range(20):
        call = stranger.channel.unary_unary(f"/{'x' * 1000}{number}/ActivateNode")
        assert refusal(lambda call=call: call(b"", timeout=PATIENCE)).code() == StatusCode.FAILED_PRECONDITION
        beat = SendNodeHeartbeatRequest(node=node.node, heartbeat_interval=1e6 + number)
        refused = refusal(lambda beat=beat: node.stub.SendNodeHeartbeat(beat, timeout=PATIENCE))
        assert refused.code() == StatusCode.INVALID_ARGUMENT
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    beat = "/flwr.proto.Fleet/SendNodeHeartbeat"
    assert lines == [
        "an unknown call: [code: 2004] a node with an unregistered key",
        f"{beat}: [code: 2003] a heartbeat interval of 1000000.0 s is outside (10.0, 1800.0)",
    ]


def test_many_calls_on_a_connection_hold_little(server: Server) -> None:
    connection = server.stranger.http2()
    connection.read(0.5)
    assert connection.most_streams <= gate.STREAMS
    streams = [connection.begin() for _ in range(gate.STREAMS)]
    connection.push(streams, MB, 5.0, whole=False)
    assert sum(connection.sent.values()) <= gate.STREAMS * 2 * gate.AHEAD_BYTES


def test_a_client_tries_again_while_the_database_cannot_say_whose_key_it_is(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = server.node()
    with monkeypatch.context() as patch:
        fault = FlowerError(ApiErrorCode.LINKSTATE_NOT_INITIALIZED, "the database: locked")
        patch.setattr(server.link.state, "get_node_id_by_public_key", Mock(side_effect=fault))
        assert refusal(node.beat).code() == StatusCode.UNAVAILABLE
    assert node.beat()


# With one -----------------------------------------------------------------------------------------------------------


def test_a_registered_node_is_served(server: Server) -> None:
    node = server.node()
    assert node.beat()
    assert not node.stub.PullMessages(PullMessagesRequest(node=node.node), timeout=PATIENCE).messages_list
    assert not node.push(5 * MB)  # of no reply that is under way
    assert server.refused() == set()


def test_parts_of_a_large_model_go_through(server: Server) -> None:
    node = server.node()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(node.push, [5 * MB] * 20)) == [False] * 20
    assert server.refused() == set()


@pytest.mark.parametrize("path", [FLEET[1], EXCHANGE[1]])
def test_a_slow_body_of_a_node_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.2)
    node = server.node()
    assert node.beat()
    connection = server.stranger.http2()
    stream = connection.begin(path, node.head())
    for _ in range(3):
        connection.push([stream], MB, 0.3, whole=False)
        server.look_for(0.3)
    assert connection.sent[stream] == MB + 4
    assert not connection.ended
    assert not connection.gone
    connection.push([stream], MB, 5.0, whole=True)
    connection.read(5.0)
    assert connection.ended == {stream}
    assert node.beat()


@pytest.mark.parametrize("path", WAITING)
@pytest.mark.parametrize("size", [gate.SMALL_CALL // 2, gate.SMALL_CALL + 1])
def test_only_parts_of_replies_are_large(server: Server, size: int, path: str) -> None:
    node = server.node()
    call = node.channel.unary_unary(path)
    about = {"node": node.node} if path == FLEET[0] else {"node_id": node.node.node_id}
    filled = WAITING[path](**about).SerializeToString() + b"\xfa\x7f" + _varint(size) + bytes(size)
    if size > gate.SMALL_CALL:
        assert refusal(lambda: call(filled, timeout=PATIENCE)).code() == StatusCode.RESOURCE_EXHAUSTED
    else:
        assert call(filled, timeout=PATIENCE) == b""
    assert refusal(lambda: node.push(LARGEST_CALL)).code() == StatusCode.RESOURCE_EXHAUSTED
    assert node.beat()


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14])


@pytest.mark.parametrize("path", [*FLEET, *EXCHANGE])
@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff"])
def test_a_body_that_says_nothing_is_an_error(server: Server, content: bytes, path: str) -> None:
    node = server.node()
    call = node.channel.unary_unary(path)
    assert refusal(lambda: call(content, timeout=PATIENCE)).code() in (
        StatusCode.INVALID_ARGUMENT,
        StatusCode.UNAUTHENTICATED,
    )
    assert node.beat()


def test_what_is_compressed_is_not_blown_up(server: Server) -> None:
    node = server.node(compression=grpc.Compression.Gzip)
    assert refusal(lambda: node.push(MB)).code() == StatusCode.INVALID_ARGUMENT
    assert server.node().beat()


def test_a_connection_has_a_few_bodies_under_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, lock, go = [0], [0], threading.Lock(), threading.Event()

    def hold(*given: Any) -> Any:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        go.wait(PATIENCE)
        with lock:
            inside[0] -= 1
        return PushObjectResponse(stored=False)

    path = "/flwr.proto.Fleet/PushObject"
    monkeypatch.setitem(server.pipeline._calls, path, replace(server.pipeline._calls[path], answer=hold))  # type: ignore[arg-type]
    node, other = server.node(), server.node()
    with ThreadPoolExecutor(12) as threads:
        pushes = [threads.submit(node.push, 1000) for _ in range(6)]
        wait_until(lambda: inside[0] >= 2, lambda: str(inside))
        assert node.beat()  # its sign of life does not wait behind its replies
        pushes += [threads.submit(other.push, 1000) for _ in range(2)]
        wait_until(lambda: inside[0] >= 4, lambda: str(inside))
        go.set()
        assert not any(push.result() for push in pushes)
    assert most[0] == 4


def test_a_node_gets_nothing_of_another_nodes_message(server: Server) -> None:
    honest, other = server.node(), server.node()
    run = server.link.run()
    message = server.link.send(run, honest.node.node_id, arrays=2)
    for object_id in parts(message):
        assert other.pull(run, object_id) is None
        other.confirm(run, object_id)
    assert {object_id: honest.pull(run, object_id) for object_id in parts(message)} == parts(message)
    honest.confirm(run, message.metadata.message_id)
    assert honest.pull(run, message.metadata.message_id) is not None  # until it has answered: it may end before
    assert server.refused() == {"refused: a call for what is another client's"}


# Connections --------------------------------------------------------------------------------------------------------


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return bool(connection.recv(1 << 16))
    except TimeoutError:
        return True
    except OSError:
        return False


def test_connections_end_on_which_nobody_shows_a_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 1.0)
    node = server.node()
    assert node.beat()
    silent, shaken, half = server.stranger.plain(), server.stranger.tls("h2"), server.stranger.plain()
    half.sendall(b"\x16\x03\x01")
    talking = server.stranger.http2()
    server.connections.look()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not (talking.gone and not any(is_open(each) for each in (silent, shaken, half))):
        talking.begin()  # which is refused, and keeps nothing
        talking.read(0.01)
        server.connections.look()
    assert talking.gone
    assert not any(is_open(each) for each in (silent, shaken, half))
    assert "refused: a connection without a credential" in server.refused()
    assert node.beat()


def test_beyond_a_number_the_oldest_strangers_go_and_clients_stay(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = server.node()
    assert early.beat()
    opened = list[socket.socket]()
    for _ in range(DESCRIPTORS // 5 + 20):
        opened.append(server.stranger.plain())
        if len(opened) % 50 == 0:
            server.look_for(0.1)
    server.look_until(lambda: sum(not is_open(each) for each in opened[:50]) >= 20)
    late = server.node()
    assert late.beat()
    assert not any(is_open(each) for each in opened[:15])
    assert all(is_open(each) for each in opened[-15:])
    assert early.beat()


def test_during_a_flood_connections_are_looked_after_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 3600.0)
    refused = server.stranger.plain()
    wait_until(lambda: bool(dict(server.connections._connected())))
    server.connections.dismiss(server.port, *refused.getsockname()[:2])
    server.connections.look_when_due()
    assert not is_open(refused)
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.0)
    silent = server.stranger.plain()
    port = silent.getsockname()[1]  # the one before may not be closed yet
    wait_until(lambda: any(place.peer_port == port for place, _ in server.connections._connected()))
    server.connections.look()
    server.connections.look()  # it closes this one, so there may be more
    server.connections.look_when_due()
    assert not is_open(silent)


def test_strangers_go_even_where_no_descriptor_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.0)
    stranger = server.stranger.plain()
    wait_until(lambda: bool(dict(server.connections._connected())))
    server.connections.look()
    time.sleep(0.1)
    highest = max(int(file.name) for file in Path("/dev/fd").iterdir())
    with contextlib.ExitStack() as held:
        held.enter_context(descriptors(highest + 3))
        with contextlib.suppress(OSError):
            while True:
                held.enter_context(Path("/dev/null").open())
        server.connections.look()
    assert not is_open(stranger)


def test_a_connection_that_is_closed_while_it_is_looked_at_does_not_keep_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.0)
    port = free_port()
    looking = Connections({port: 100}, DESCRIPTORS, RefusalLog())
    with socket.create_server(("127.0.0.1", port)) as listener:
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        first, second = (listener.accept()[0] for _ in strangers)
        with first, second, strangers[0], strangers[1]:
            looking.look()
            seen = list(looking._connected())
            assert [descriptor for _, descriptor in seen] == [first.fileno(), second.fileno()]
            monkeypatch.setattr(looking, "_connected", lambda: iter(seen))
            place_of = looking._place_of
            monkeypatch.setattr(looking, "_place_of", lambda given: (place_of(given), first.close())[0])
            looking.look()
            assert not is_open(strangers[1])


def test_there_are_no_more_connections_than_half_of_the_descriptors(server: Server) -> None:
    with contextlib.suppress(OSError):
        for _ in range(server.connections.most + 50):
            server.stranger.plain()
    wait_until(lambda: sum(1 for _ in server.connections._connected()) >= server.connections.most - 5)
    time.sleep(0.5)
    assert sum(1 for _ in server.connections._connected()) <= server.connections.most


def test_there_are_no_more_connections_than_memory_allows(tmp_path: Path) -> None:
    assert Connections({}, connections.MOST_DESCRIPTORS, RefusalLog()).most == connections.MOST_CONNECTIONS


def test_a_connection_is_asked_for_its_addresses_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [server.stranger.plain() for _ in range(3)]
    wait_until(lambda: len(dict(server.connections._connected())) == len(held))
    monkeypatch.setattr(Connections, "_place_of", lambda *_: pytest.fail("an address is asked for again"))
    server.connections.look()
    assert len(dict(server.connections._connected())) == len(held)


def test_a_client_may_have_a_few_connections(server: Server) -> None:
    node = server.node()
    again = [server.caller(node.key, node.node.node_id) for _ in range(8)]
    for each in (node, *again):
        assert each.beat()
        server.connections.look()
    server.look_until(lambda: sum(1 for _ in server.connections._connected()) <= connections.CONNECTIONS_OF_ONE_KEY)
    assert again[-1].beat()


@pytest.mark.slow
@pytest.mark.parametrize("number", [20, 200])
def test_clients_behind_one_address_all_come_in(server: Server, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 30.0)
    nodes = [server.node() for _ in range(number)]
    looking = threading.Event()

    def look() -> None:
        while not looking.wait(0.05):
            server.connections.look()

    watch = threading.Thread(target=look)
    watch.start()
    try:
        with ThreadPoolExecutor(20) as threads:
            assert all(threads.map(lambda node: node.beat(), nodes))
            assert all(threads.map(lambda node: node.beat(), nodes))
    finally:
        looking.set()
        watch.join()
    assert sum(1 for _ in server.connections._connected()) == number
    assert server.refused() == set()


def test_all_descriptors_are_taken_that_the_system_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = connections.MOST_DESCRIPTORS
    allowed = allowed if hard == resource.RLIM_INFINITY else min(hard, allowed)
    with descriptors(500):
        assert connections.raise_descriptors() == allowed
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, hard)


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        ("ipv4:192.0.2.7:4711", ("192.0.2.7", 4711)),
        ("ipv6:%5B2001:db8::7%5D:4711", ("2001:db8::7", 4711)),
        ("ipv6:[::1]:80", ("::1", 80)),
    ],
)
def test_a_peer_is_read_as_grpc_writes_it(written: str, peer: tuple[str, int]) -> None:
    assert host_and_port(written) == peer

"""The reasons why a client cannot reach its server."""

import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.connectivity import (
    NO_PROXIES,
    PROXIES,
    connection_fault,
    find_proxy,
)

# How a machine may name a proxy, which {} stands for: whether gRPC takes it to a host.
ENVIRONMENTS = [
    *(({name: "{}"}, "localhost", True) for name in ("grpc_proxy", "https_proxy", "http_proxy")),
    *(({name: "{}"}, "localhost", False) for name in ("HTTPS_PROXY", "all_proxy")),
    ({"grpc_proxy": "{}", "https_proxy": "http://127.0.0.1:9"}, "localhost", True),
    ({"https_proxy": "", "http_proxy": "{}"}, "localhost", False),
    ({"https_proxy": "{}/"}, "localhost", True),
    ({"https_proxy": "{upper}"}, "localhost", True),
    ({"https_proxy": "localhost:9"}, "localhost", False),
    ({"https_proxy": "socks5://127.0.0.1:9", "http_proxy": "{}"}, "localhost", False),
    *(
        ({"https_proxy": "{}", "no_proxy": listed}, "localhost", False)
        for listed in ("localhost", ".localhost", "a, LOCALHOST ,b")
    ),
    *(
        ({"https_proxy": "{}", "no_proxy": listed}, "localhost", True)
        for listed in ("", "host", "*", "localhost:1", "a.localhost")
    ),
    ({"https_proxy": "{}", "no_proxy": "127.0.0.0/8"}, "127.0.0.1", False),
    ({"https_proxy": "{}", "no_proxy": "128.0.0.0/8"}, "127.0.0.1", True),
    ({"https_proxy": "{}", "NO_PROXY": "localhost"}, "localhost", True),
    ({"https_proxy": "{}", "no_grpc_proxy": "x", "no_proxy": "localhost"}, "localhost", True),
    ({"https_proxy": "{}", "no_grpc_proxy": "localhost"}, "localhost", False),
]

GRPC = b"\0\0\x12\x04\0\0\0\0\0" + bytes(18)
# The first bytes of a gRPC server's answer, and of a web server's.
HTTP = b"HTTP/1.1 200 OK\r\n\r\n"


@contextmanager
def server(certificate: tuple[Path, Path] | None, answer: bytes = GRPC) -> Iterator[str]:
    """A port that answers every connection in the same way, with or without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            if answer == GRPC:
                context.set_alpn_protocols(["h2"])

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), connection:
                        talk(connection)

        def talk(plain: socket.socket) -> None:
            with context.wrap_socket(plain, server_side=True) if context else plain as connection:
                connection.sendall(answer)
                if answer:
                    connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def signed(bundle: Path, days: float) -> tuple[Path, Path]:
    authority = bundle.parents[1]
    files = (bundle / "server.crt", bundle / "server.key")
    pki.make_server_certificate(
        authority / "ca.crt", authority / "ca.key", *files, ["localhost"], days
    )
    return files


def fault(bundle: Path, address: str) -> str | None:
    return connection_fault(replace(ClientSettings.of({}, bundle / "client.toml"), server=address))


@pytest.mark.parametrize(
    ("days", "answer", "words"),
    [
        (-1.0, GRPC, "does not vouch for: certificate has expired"),
        (0.0, GRPC, "does not speak TLS"),
        (0.0, b"", "the server is full"),
        (1.0, HTTP, "is a web server's port"),
        (1.0, GRPC, ""),
    ],
)
def test_the_fault_between_client_and_server_is_named(
    bundle: Path, days: float, answer: bytes, words: str
) -> None:
    with server(signed(bundle, days) if days else None, answer) as address:
        said = fault(bundle, address)
    assert (words in (said or "")) if words else said is None, words
    # without a proxy none is named
    assert fault(bundle, "127.0.0.1:1") == "127.0.0.1:1 cannot be reached: Connection refused"


# Behind a proxy -----------------------------------------------------------------------------------


@contextmanager
def proxy(answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of a proxy that answers CONNECT so, and what it was asked."""
    asked: list[bytes] = []

    def forward(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while part := one.recv(4096):
                other.sendall(part)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def talk(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            asked.append(connection.recv(1000))
            connection.sendall(answer)
            if b" 200 " in answer:
                host, _, port = asked[-1].split()[1].decode().partition(":")
                with socket.create_connection((host, int(port))) as there:
                    back = threading.Thread(target=forward, args=(there, connection), daemon=True)
                    back.start()
                    forward(connection, there)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    talk(listener.accept()[0])

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*PROXIES, *NO_PROXIES]:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("named", "host", "is_used"), ENVIRONMENTS)
def test_a_probe_goes_the_way_of_grpc(
    named: dict[str, str], host: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(b"HTTP/1.1 403 Forbidden\r\n\r\n") as (url, asked):
        for name, value in named.items():
            monkeypatch.setenv(name, value.format(url, upper=url.upper()))
        with (
            grpc.secure_channel(f"{host}:1", grpc.ssl_channel_credentials()) as channel,
            suppress(grpc.RpcError),
        ):
            channel.unary_unary("/a/b")(b"", timeout=10)
        assert bool(asked) == is_used == bool(find_proxy(host))


def test_a_server_beyond_a_proxy_answers(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(signed(bundle, 1.0)) as address, proxy() as (url, asked):
        monkeypatch.setenv("https_proxy", url.replace("//", "//ann:p%40ss@"))
        assert fault(bundle, address) is None
        asked_for = asked[0].decode()
    assert asked_for.startswith(f"CONNECT {address} ")
    assert f"Basic {b64encode(b'ann:p@ss').decode()}" in asked_for


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "Tunnel connection failed: 403 Forbidden"),
        (b"SSH-2.0-OpenSSH\r\n", "https_proxy is no proxy's: SSH-2.0"),
        (b"", "https_proxy is no proxy's: Remote end closed"),
    ],
)
def test_a_proxy_that_keeps_a_client_out_is_named(
    bundle: Path, answer: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(signed(bundle, 1.0)) as address, proxy(answer) as (url, _):
        monkeypatch.setenv("https_proxy", url.replace("//", "//ann:secret@"))
        said = fault(bundle, address) or ""
        assert words in said
        assert "the environment variable https_proxy names" in said
        assert "secret" not in said
        remedy = re.search(r"no_proxy=(\S+)", said)
        assert remedy
        monkeypatch.setenv("no_proxy", remedy[1])
        assert fault(bundle, address) is None


def test_a_proxy_that_is_off_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://127.0.0.1:1", "http://127.0.0.1:x"):
        monkeypatch.setenv("https_proxy", url)
        assert "variable https_proxy names" in (fault(bundle, "localhost:2") or "")

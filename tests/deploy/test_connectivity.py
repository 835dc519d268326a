"""The reasons why a client cannot reach its server."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.connectivity import connection_fault

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
    assert "127.0.0.1:1 cannot be reached: Connection refused" in (
        fault(bundle, "127.0.0.1:1") or ""
    )

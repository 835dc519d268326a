"""What stands between a client and its server, in words."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.connectivity import connection_fault

GRPC, HTTP = b"\0\0\x12\x04\0\0\0\0\0" + bytes(18), b"HTTP/1.1 200 OK\r\n\r\n"
"""How an answer of a gRPC server begins, and of a web server."""


@contextmanager
def server(certificate: tuple[Path, Path] | None, answer: bytes = GRPC) -> Iterator[str]:
    """A port that answers every connection alike, over TLS with this certificate or without."""
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
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def signed(bundle: Path, host: str = "localhost", days: float = 1.0) -> tuple[Path, Path]:
    authority, files = bundle.parents[1], (bundle / "server.crt", bundle / "server.key")
    pki.make_server_certificate(authority / "ca.crt", authority / "ca.key", *files, [host], days)
    return files


def fault(bundle: Path, address: str) -> str | None:
    return connection_fault(replace(ClientSettings.of({}, bundle / "client.toml"), server=address))


def test_nothing_stands_in_the_way_of_a_good_certificate(bundle: Path) -> None:
    with server(signed(bundle)) as address:
        assert fault(bundle, address) is None


def test_an_expired_certificate_is_named(bundle: Path) -> None:
    with server(signed(bundle, days=-1)) as address:
        words = fault(bundle, address) or ""
    assert "does not vouch for: certificate has expired" in words
    assert "the federation's operator makes a new one (fairbloom deploy renew)" in words


def test_a_server_without_tls_is_named(bundle: Path) -> None:
    with server(None) as address:
        assert "does not speak TLS" in (fault(bundle, address) or "")


def test_a_web_servers_port_is_named(bundle: Path) -> None:
    with server(signed(bundle), HTTP) as address:
        words = fault(bundle, address) or ""
    assert words.startswith(f"{address} is a web server's port")
    assert "clients connect to the fleet port, 9092 unless the federation's operator chose another" in words


def test_a_closed_port_is_named(bundle: Path) -> None:
    words = fault(bundle, "127.0.0.1:1") or ""
    assert words.startswith("127.0.0.1:1 cannot be reached: Connection refused")

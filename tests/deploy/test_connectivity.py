"""What stands between a client and its SuperLink, in words."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.connectivity import connection_fault
from fairbloom.deploy.flower.device.session import REMEDIES

GRPC, HTTP = b"\0\0\x12\x04\0\0\0\0\0" + bytes(18), b"HTTP/1.1 200 OK\r\n\r\n"
"""How an answer of a gRPC server begins, and of a control API."""


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
    files = (bundle / "server.crt", bundle / "server.key")
    pki.make_server_certificate(bundle / "ca.crt", bundle / "ca.key", *files, [host], days)
    return files


def test_nothing_stands_in_the_way_of_a_good_certificate(bundle: Path) -> None:
    with server(signed(bundle)) as address:
        assert connection_fault(ClientSettings(superlink=address, ca=str(bundle / "ca.crt"))) is None


def test_an_expired_certificate_is_named(bundle: Path) -> None:
    with server(signed(bundle, days=-1)) as address:
        words = connection_fault(ClientSettings(superlink=address, ca=str(bundle / "ca.crt"))) or ""
    assert "does not vouch for: certificate has expired" in words
    assert "fairbloom deploy renew" in words


def test_a_server_without_tls_is_named(bundle: Path) -> None:
    with server(None) as address:
        words = connection_fault(ClientSettings(superlink=address, ca=str(bundle / "ca.crt"))) or ""
    assert "does not speak TLS" in words


def test_tls_where_none_was_meant_is_named(bundle: Path) -> None:
    with server(signed(bundle)) as address:
        assert "this client is set insecure" in (
            connection_fault(ClientSettings(superlink=address, insecure=True)) or ""
        )
    with server(None) as address:
        assert connection_fault(ClientSettings(superlink=address, insecure=True)) is None


@pytest.mark.parametrize("over_tls", [True, False])
def test_the_control_apis_port_is_named(bundle: Path, over_tls: bool) -> None:
    with server(signed(bundle) if over_tls else None, HTTP) as address:
        safety: dict[str, Any] = {"ca": str(bundle / "ca.crt")} if over_tls else {"insecure": True}
        words = connection_fault(ClientSettings(superlink=address, **safety)) or ""
    assert words.startswith(f"{address} is the control API's port")
    assert "clients connect to the fleet port, 9092 unless the federation's operator chose another" in words


def test_what_is_the_operators_to_do_is_said_to_be_so(bundle: Path) -> None:
    """These words are read on a device, where there are no such commands."""
    with server(signed(bundle, host="elsewhere.example", days=-1)) as address:
        said = [
            connection_fault(ClientSettings(superlink=address, ca=str(bundle / "ca.crt"))) or "",
            *REMEDIES.values(),
        ]
    for words in said:
        assert "fairbloom deploy" not in words.partition("the federation's operator")[0]
        assert "operator" in words


def test_a_closed_port_is_named() -> None:
    words = connection_fault(ClientSettings(superlink="127.0.0.1:1", insecure=True)) or ""
    assert words.startswith("127.0.0.1:1 cannot be reached: Connection refused")

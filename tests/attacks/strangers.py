"""Connections and handshakes of a stranger: a program without a certificate of the federation."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@contextlib.contextmanager
def descriptors(number: int) -> Iterator[None]:
    """Raise the limit of open files for this process and its children, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Stranger:
    """A program that knows only the address of a port and the certificate of the authority."""

    def __init__(self, port: int, authority: Path) -> None:
        self.port = port
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.set_alpn_protocols(["h2"])
        self._open: list[socket.socket] = []

    def plain(self) -> socket.socket:
        """Open a connection and send nothing."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self._open.append(made)
        return made

    def tls(self) -> ssl.SSLSocket:
        """Open a connection and complete the handshake without a certificate."""
        made = self._tls.wrap_socket(self.plain(), server_hostname="localhost")
        self._open.append(made)
        return made

    def half_open(self) -> None:
        """Begin a handshake and do not end it."""
        hello = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
        self.plain().sendall(hello.read())

    def say(self, content: bytes) -> bytes:
        """Send content over TLS; return the server's last answer, b"" if it ends the connection."""
        with contextlib.suppress(OSError), contextlib.closing(self.tls()) as connection:
            connection.settimeout(20)
            connection.sendall(content)
            return connection.recv(1 << 16)
        return b""

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.close()
        self._open.clear()

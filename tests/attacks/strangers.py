"""Connections and handshakes of a stranger: a program without a certificate of the federation."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.checkout import ROOT

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Connections of one process, below the usual limit of 1,024 open files.
CONNECTIONS = 800


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


@contextlib.contextmanager
def crowd(module: str, number: int, *arguments: str) -> Iterator[None]:
    """Have other processes open this number of connections, and hold them during the block.

    Each runs the module with a number of connections and the arguments; it says when it has them.
    """
    processes = list[subprocess.Popen[bytes]]()
    try:
        for start in range(0, number, CONNECTIONS):
            share = str(min(CONNECTIONS, number - start))
            command = [sys.executable, "-m", module, share, *arguments]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe))
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.communicate()


def main(number: str, port: str, authority: str, kind: str) -> None:
    """Open connections, and hold them until the standard input ends."""
    stranger = Stranger(int(port), Path(authority))
    attack = {"silent": stranger.plain, "shaken": stranger.tls, "half-open": stranger.half_open}
    for _ in range(int(number)):
        # the server accepts no more for now, or has closed this connection
        with contextlib.suppress(OSError):
            attack[kind]()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

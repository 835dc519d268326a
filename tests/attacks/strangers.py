"""Somebody on the network without a key: connections, calls and bodies that a server must not pay for."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME, FIRST_WINDOW = 16_384, 65_535
PULL = "/flwr.proto.Fleet/PullMessages"
SERVICES = {"part by part": "/flwr.proto.Fleet/PushObject", "whole": "/fairbloom.exchange.v1.Exchange/Reply"}
"""The largest call of each service of the fleet's port."""


@contextlib.contextmanager
def descriptors(number: int) -> Iterator[None]:
    """Let this process, and those that it starts, have so many descriptors, as far as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Stranger:
    """Knows the address of a port and the authority's certificate, and nothing else."""

    def __init__(self, port: int, authority: Path) -> None:
        self.port = port
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._open: list[socket.socket] = []

    def plain(self) -> socket.socket:
        """Open a connection on which nothing is said."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self._open.append(made)
        return made

    def tls(self, *protocols: str) -> ssl.SSLSocket:
        """Open a connection and shake hands."""
        self._tls.set_alpn_protocols(list(protocols))
        made = self._tls.wrap_socket(self.plain(), server_hostname="localhost")
        self._open.append(made)
        return made

    def half_open(self) -> None:
        """Begin a handshake that does not end."""
        hello = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
        self.plain().sendall(hello.read())

    def http2(self) -> Http2:
        """Open a connection that speaks HTTP/2."""
        return Http2(self.tls("h2"))

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.close()
        self._open.clear()


class Http2:
    """A connection that says what it wants, and as much of a call's body as the server takes."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self._windows = {0: FIRST_WINDOW}
        self._first_window, self._received, self._streams = FIRST_WINDOW, b"", 0
        self.sent: dict[int, int] = {}
        self.ended: set[int] = set()
        self.gone, self.most_streams = False, 1 << 31
        self.send(PREFACE + frame(SETTINGS, 0, 0, b""))

    def send(self, content: bytes) -> None:
        """Send bytes; a connection that the server has closed takes none."""
        if self.gone:
            return
        try:
            self._tls.sendall(content)
        except OSError:
            self.gone = True

    def begin(self, path: str = PULL, headers: Mapping[str, str] | None = None) -> int:
        """Begin a call, without its body; return the number of its stream."""
        self._streams += 1
        stream = 2 * self._streams - 1
        about = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "localhost", "te": "trailers"}
        about |= {"content-type": "application/grpc", **(headers or {})}
        self._windows[stream] = self._first_window
        self.send(frame(HEADERS, END_HEADERS, stream, b"".join(map(header, about, about.values()))))
        return stream

    def push(self, streams: Iterable[int], size: int, seconds: float, *, whole: bool) -> None:
        """Send calls' bodies of `size` bytes, as far as the server takes them; how much it took is in `sent`.

        It ends when all is sent, less the last byte where it shall not be `whole`, when the server has ended all
        calls, or when the time is over.
        """
        until, goal = time.monotonic() + seconds, 5 + size - (0 if whole else 1)
        self.sent = dict.fromkeys(streams, 0) | self.sent
        left = set(self.sent)
        while left and not self.gone and time.monotonic() < until:
            for stream in sorted(left):
                self._push_part(stream, size, goal, whole)
            left = {stream for stream in left - self.ended if self.sent[stream] < goal}
            self.read(0.0 if left else 0.2)

    def _push_part(self, stream: int, size: int, goal: int, whole: bool) -> None:
        sent = self.sent[stream]
        room = min(FRAME, self._windows[0], self._windows[stream], goal - sent)
        if room <= 0:
            return
        head = b"\0" + struct.pack(">I", size) if sent == 0 else b""
        over = whole and sent + room == goal
        self.send(frame(DATA, END_STREAM if over else 0, stream, (head + bytes(FRAME))[:room]))
        self.sent[stream] += room
        self._windows[0] -= room
        self._windows[stream] -= room

    def read(self, seconds: float) -> None:
        """Take in what the server says, waiting at most so long for it."""
        self._tls.settimeout(max(seconds, 0.001))
        try:
            content = self._tls.recv(1 << 16)
            self.gone = self.gone or not content
            self._received += content
        except TimeoutError:
            pass
        except OSError:
            self.gone = True
        self._tls.settimeout(20)
        while len(self._received) >= 9 and len(self._received) >= 9 + (size := int.from_bytes(self._received[:3])):
            kind, flags = self._received[3], self._received[4]
            stream, content = int.from_bytes(self._received[5:9]), self._received[9 : 9 + size]
            self._received = self._received[9 + size :]
            self._hear(kind, flags, stream, content)

    def _hear(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for place in range(0, len(content), 6):
                name, value = struct.unpack(">HI", content[place : place + 6])
                if name == 3:
                    self.most_streams = value
                if name == 4:
                    self._windows |= {
                        each: room + value - self._first_window for each, room in self._windows.items() if each
                    }
                    self._first_window = value
            self.send(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, content))
        elif kind == WINDOW:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(content)
        elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)
        elif kind == GOAWAY:
            self.gone = True


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def header(name: str, value: str) -> bytes:
    return b"\0" + text(name) + text(value)


def text(value: str) -> bytes:
    """Return a string as HPACK has it, without its code of Huffman's."""
    encoded, rest = value.encode(), len(value) - 127
    if rest < 0:
        return bytes([len(encoded)]) + encoded
    number = bytearray([127])
    while rest >= 128:
        number.append(rest % 128 + 128)
        rest //= 128
    return bytes(number) + bytes([rest]) + encoded

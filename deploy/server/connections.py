"""Connections to the server's ports: how many there may be, and how long one may last that has shown no credential.

Neither gRPC nor uvicorn closes a connection because nobody has shown a key on it, and behind one address there may be
two hundred honest clients. So the process looks at its sockets, and learns which of them have made a call with a
good credential.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from fairbloom.logs import log

from .refusals import RefusalLog

MOST_DESCRIPTORS = 65_536
"""Most descriptors that this process asks the system for."""

STRANGER_SECONDS = 15.0
"""How long a connection may last on which no call with a good credential has come. A handshake over a slow link takes
less than half of it, and a client's first call follows at once."""

MOST_STRANGERS = 500
"""Most connections of a port without a credential, where there are descriptors for them; a fifth of those at most.
Beyond that, the oldest is closed: an honest client shows its key long before a flood has pushed its connection out."""

MOST_CONNECTIONS = 1500
"""Most connections of the fleet's port, with a credential or without. It bounds what gRPC accepts before `look` sees
it: a handshake that does not end takes 40 kB."""

MOST_STRANGERS_OVER_HTTP = 100
"""The same of the control API's port, where a connection on which much is sent takes 0.8 MB."""

CONNECTIONS_OF_ONE_KEY = 4
"""Most connections on which one client has shown its key; it needs one. The oldest beyond are closed."""

LOOK_SECONDS, PAUSE_SECONDS = 0.25, 0.02
"""Most and least time between two looks at the connections: while some are to be closed, there is one after another, so
that how many a flood has open does not depend on how fast it comes."""


class Place(NamedTuple):
    """A connection, by the server's port and the address and port of the peer."""

    port: int
    peer: str
    peer_port: int


class Connections:
    """Knows the connections of some ports, and closes those without a credential.

    `ports` says how many connections without a credential each may have; `descriptors` how many this process may have.
    `most` is the limit for all connections of a port, which leaves room for the other port, database, files and
    processes.
    """

    def __init__(self, ports: Mapping[int, int], descriptors: int, refusals: RefusalLog) -> None:
        self._most_descriptors, self._refusals = descriptors, refusals
        self.most = min(descriptors // 2, MOST_CONNECTIONS)
        self._most_strangers = {port: min(most, descriptors // 5) for port, most in ports.items()}
        self._lock = threading.Lock()
        self._places: dict[tuple[int, int, int], Place | None] = {}
        self._since: dict[Place, float] = {}
        self._admitted: dict[Place, int] = {}
        self._dismissed: set[Place] = set()
        self._look_soon = threading.Event()

    def admit(self, port: int, peer: str, peer_port: int, node_id: int = 0) -> None:
        """Keep a connection on which a call with a good credential came, of this node where it was one's key."""
        with self._lock:
            self._admitted[_place(port, peer, peer_port)] = node_id

    def dismiss(self, port: int, peer: str, peer_port: int) -> None:
        """Close a connection soon on which a call without a good credential was answered, whatever it still sends."""
        with self._lock:
            self._dismissed.add(_place(port, peer, peer_port))
        self._look_soon.set()

    def watch(self) -> None:
        """Look after the connections until the process ends."""
        while True:
            try:
                self.look_when_due()
            except OSError as error:
                log.warning("the server's connections cannot be looked at: %s", error)

    def look_when_due(self) -> None:
        """Wait until it is time to look after the connections again, and do so."""
        self._look_soon.wait(LOOK_SECONDS)
        self._look_soon.clear()
        time.sleep(PAUSE_SECONDS)
        self.look()

    def look(self) -> None:
        """Close the connections that have lasted too long without a credential, and the oldest of too many."""
        with self._lock:
            admitted = dict(self._admitted)
        now, connected = time.monotonic(), dict(self._connected())
        self._since = {place: since for place, since in self._since.items() if place in connected}
        self._since |= {place: now for place in connected if place not in self._since}  # so the oldest stay first
        with self._lock:
            for place in admitted:  # not those that were admitted since: they may be newer than the list
                if place not in connected:
                    del self._admitted[place]
            admitted = dict(self._admitted)
            dismissed, self._dismissed = self._dismissed, set()
        for place in self._strangers_to_close(admitted, now):
            self._close(connected[place], place)
            self._refusals.note("a connection without a credential", port=str(place.port), peer=place.peer)
            self._look_soon.set()
        for place in [*(dismissed & connected.keys() - admitted.keys()), *self._too_many_of_one_key(admitted)]:
            self._close(connected[place], place)

    def _strangers_to_close(self, admitted: Mapping[Place, int], now: float) -> Iterator[Place]:
        for port, most in self._most_strangers.items():
            strangers = [place for place in self._since if place.port == port and place not in admitted]
            for number, place in enumerate(strangers):
                if number < len(strangers) - most or now - self._since[place] > STRANGER_SECONDS:
                    yield place

    def _too_many_of_one_key(self, admitted: Mapping[Place, int]) -> list[Place]:
        of_one: dict[int, list[Place]] = {}
        for place in self._since:
            if node_id := admitted.get(place):
                of_one.setdefault(node_id, []).append(place)
        return [place for places in of_one.values() for place in places[:-CONNECTIONS_OF_ONE_KEY]]

    def _connected(self) -> Iterator[tuple[Place, int]]:
        """Give this process's connections to the ports, and their descriptors, about in order of age.

        Descriptors are used again, so sockets are in the system's order. Each is asked for its addresses once: during a
        flood, a look at thousands of connections must not take long.
        """
        known, self._places = self._places, {}
        for descriptor in self._descriptors():
            with contextlib.suppress(OSError):  # which was closed, or is a socket that listens
                about = os.fstat(descriptor)
                number = (about.st_ino, about.st_dev, descriptor)
                self._places[number] = known.get(number)
                if number not in known and stat.S_ISSOCK(about.st_mode):
                    with _borrowed(descriptor) as seen:
                        self._places[number] = self._place_of(seen)
        for (_, _, descriptor), place in sorted(self._places.items()):
            if place:
                yield place, descriptor

    def _descriptors(self) -> Iterable[int]:
        try:
            return [int(file.name) for file in Path("/dev/fd").iterdir()]
        except OSError:  # none is left to look with: all numbers are looked at, whether they are in use or not
            return range(self._most_descriptors)

    def _place_of(self, seen: socket.socket) -> Place | None:
        """Return the connection that a socket is, None where it is none of the ports'."""
        if seen.family not in (socket.AF_INET, socket.AF_INET6) or seen.getsockname()[1] not in self._most_strangers:
            return None
        return _place(seen.getsockname()[1], *seen.getpeername()[:2])

    def _close(self, descriptor: int, place: Place) -> None:
        """Let a connection end, as if the peer had hung up: who reads from it closes it."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as seen:  # which was closed, or the peer has hung up
            if self._place_of(seen) == place:
                seen.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give the socket of a descriptor, which gRPC or uvicorn may close at any time; OSError if it is none."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _place(port: int, peer: str, peer_port: int) -> Place:
    """Return a connection; an IPv4 peer of an IPv6 socket is written as an IPv4 address."""
    address = ip_address(peer.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return Place(port, str(mapped or address), peer_port)


def raise_descriptors() -> int:
    """Let this process have as many descriptors as the system allows, within reason; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed

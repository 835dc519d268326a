"""The connections of a server: their limit, their number, and how to close one of gRPC's."""

import contextlib
import ipaddress
import os
import resource
import socket
import stat
from collections.abc import Collection
from pathlib import Path

# Open files that the server keeps for itself: the registry, runs, and contents beyond the memory.
OWN_FILES = 256

# Open files of these that contents may not take.
OTHER_FILES = 64

# Connections beyond four a client. Strangers count until their handshake fails: with a tight limit
# they would lock devices out.
OTHER_CONNECTIONS = 1000

# With more than this share of all connections the port is full: some may have ended just now.
FULL = 0.98

# The system lists this process's open files here; macOS has only the second folder.
OPEN_FILES = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as it may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def connection_limit(max_clients: int, files: int) -> int:
    """Return the connections that a server takes, for its process's limit of open files."""
    return max(1, min(4 * max_clients + OTHER_CONNECTIONS, files - OWN_FILES))


def list_open_files() -> list[int]:
    """Return the numbers of this process's open files."""
    with os.scandir(OPEN_FILES) as entries:
        return [int(entry.name) for entry in entries]


def count_sockets() -> int:
    """Return the number of this process's sockets."""
    found = 0
    for number in list_open_files():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += stat.S_ISSOCK(os.fstat(number).st_mode)
    return found


def close_connections(peers: Collection[str]) -> None:
    """End the connections from these addresses, in the form of gRPC's `peer`.

    gRPC itself closes no single connection. It notices that a socket was shut down, as if the other
    side had ended the connection.
    """
    for number in list_open_files():
        with contextlib.suppress(OSError):  # no socket, not connected, or closed meanwhile
            # a duplicate: gRPC may close the original at any time, and the system reuse its number
            copy = os.dup(number)
            try:
                connection = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with connection:
                if format_peer(connection.getpeername()) in peers:
                    connection.shutdown(socket.SHUT_RDWR)


def format_peer(address: object) -> str:
    """Return a socket's address in the form of gRPC's `peer`, "" if it is of another family."""
    if not isinstance(address, tuple):
        return ""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if host.version == 6 and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"ipv4:{host}:{address[1]}" if host.version == 4 else f"ipv6:%5B{host}%5D:{address[1]}"

"""Messages between two processes of one machine: large content is passed in a file without a name.

The receiver maps the file, so that the content is copied once, into the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from mmap import PROT_READ, mmap
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from fairbloom.logs import log

from .messages import Buffer

# Content of at most this many bytes goes through the pipe.
PIPE_BYTES = 64 << 10

# Larger content than this is written to the disk: services and containers limit shared memory.
MEMORY_FILE_BYTES = 64 << 20


def send(pipe: Connection, head: object, pieces: Sequence[Buffer], folder: str) -> None:
    """Send an object, and content in pieces; `folder` is where large content may be written."""
    size = sum(map(len, pieces))
    if size <= PIPE_BYTES:
        pipe.send((head, b"".join(pieces)))
        return
    number = write_file(pieces, size, folder)
    try:
        pipe.send((head, size))
        send_handle(pipe, number, 0)
    finally:
        os.close(number)


def receive(pipe: Connection) -> tuple[Any, bytes | memoryview]:
    """Return an object and its content; raise EOFError if the other process has ended."""
    head, content = pipe.recv()
    if isinstance(content, int):
        number = recv_handle(pipe)
        try:
            return head, memoryview(mmap(number, content, prot=PROT_READ))
        finally:
            os.close(number)
    return head, content


def write_file(pieces: Sequence[Buffer], size: int, folder: str) -> int:
    """Write content to a new file without a name; return the open file's number."""
    if size > MEMORY_FILE_BYTES or not hasattr(os, "memfd_create"):
        try:
            return fill(open_on_disk(folder), pieces)
        except OSError as error:
            words = "%s has no room for a message of %d bytes, which stays in memory: %s"
            log.warning(words, folder, size, error.strerror)
    return fill(os.memfd_create("content"), pieces)


def open_on_disk(folder: str) -> int:
    """Return the number of a new file without a name."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def fill(number: int, pieces: Sequence[Buffer]) -> int:
    """Write pieces to an open file, and return its number; close it if that fails."""
    try:
        for piece in pieces:
            write_all(number, piece)
    except BaseException:
        os.close(number)
        raise
    return number


def write_all(number: int, piece: Buffer) -> None:
    """Append a piece to an open file."""
    view = memoryview(piece)
    while view:
        view = view[os.write(number, view) :]

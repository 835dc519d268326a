"""Messages between two processes of one machine: large content is passed in a file without a name.

The receiver maps the file, so that the content is copied once, into the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from io import FileIO
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
    if size <= PIPE_BYTES or not hasattr(os, "memfd_create"):  # macOS has none
        pipe.send((head, b"".join(pieces)))
        return
    with write_file(pieces, size, folder) as file:
        pipe.send((head, size))
        send_handle(pipe, file.fileno(), 0)


def receive(pipe: Connection) -> tuple[Any, Buffer]:
    """Return an object and its content; raise EOFError if the other process has ended."""
    head, content = pipe.recv()
    if isinstance(content, int):
        with FileIO(recv_handle(pipe)) as file:
            return head, memoryview(mmap(file.fileno(), content, prot=PROT_READ))
    return head, content


def write_file(pieces: Sequence[Buffer], size: int, folder: str) -> FileIO:
    """Return a new file without a name that has this content."""
    if size > MEMORY_FILE_BYTES:
        try:
            return fill(open_on_disk(folder), pieces)
        except OSError as error:
            log.warning(
                "%s has no room for a message of %d bytes, which stays in memory: %s",
                folder,
                size,
                error.strerror,
            )
    return fill(FileIO(os.memfd_create("content"), "w"), pieces)


def open_on_disk(folder: str) -> FileIO:
    """Return a new file without a name, in a folder."""
    return tempfile.TemporaryFile(buffering=0, dir=folder)


def fill(file: FileIO, pieces: Sequence[Buffer]) -> FileIO:
    """Append pieces to a file, and return it; close it if that fails."""
    try:
        for piece in pieces:
            view = memoryview(piece)
            while view:  # a single write may take only a part
                view = view[file.write(view) :]
    except BaseException:
        file.close()
        raise
    return file

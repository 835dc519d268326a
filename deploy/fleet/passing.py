"""Messages between two processes of one machine: content in a file is passed, not copied."""

from collections.abc import Sequence
from io import FileIO
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from .content import Content


def send(pipe: Connection, head: object, contents: Sequence[Content] = ()) -> None:
    """Send an object and contents."""
    pipe.send((head, [None if each.file is not None else each.data for each in contents]))
    for each in contents:
        if each.file is not None:
            send_handle(pipe, each.file.fileno(), 0)


def receive(pipe: Connection) -> tuple[Any, list[Content]]:
    """Return an object and its contents; raise EOFError if the other process has ended."""
    head, contents = pipe.recv()
    return head, [
        Content(file=FileIO(recv_handle(pipe))) if data is None else Content(data)
        for data in contents
    ]

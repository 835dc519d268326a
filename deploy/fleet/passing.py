"""Messages between two processes of one machine: content in a file is passed, not copied.

The process of a client and the one that calls its app exchange tasks and answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Self

from fairbloom.logs import log

from .content import Content
from .messages import Buffer

# The name of a reply's file below the state folder, until the client keeps it as the last reply.
ANSWER_FILE = "answer"


@dataclass(frozen=True)
class PassedTask:
    """A message with all that is needed to answer it.

    `head` is a serialized `Head`, `settings` the JSON that came with the run, and `state` the app's
    state of the run, b"" for none.
    """

    node: int
    head: bytes
    settings: str
    content: Content = field(repr=False)
    state: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Answer:
    """A reply: content in pieces, or an error's code and reason.

    `state` is None if the app's state is unchanged, and `content` has the pieces once the client
    has received them.
    """

    pieces: Sequence[Buffer] = field(default=(), repr=False)
    code: int = 0
    reason: str = ""
    state: bytes | None = field(default=None, repr=False)
    content: Content = field(default_factory=Content, repr=False)

    @classmethod
    def failed(cls, code: int, reason: str) -> Self:
        """Log an error and return it as the answer."""
        log.error("answered with error %d: %s", code, reason)
        return cls(code=code, reason=reason)


def send(pipe: Connection, head: object, contents: Sequence[Content] = ()) -> None:
    """Send an object and contents."""
    pipe.send((head, [None if content.file is not None else content.data for content in contents]))
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

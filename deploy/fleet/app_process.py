"""The process that calls a device's app, and keeps it loaded.

worker.py starts and ends it. It opens no port: tasks and answers go through an inherited pipe.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbloom.logs import log
from fairbloom.system.parents import end_with_parent

from ..processes import free_cycles
from .content import Content, write
from .messages import Buffer
from .passing import receive, send
from .wire_pb2 import Head

if TYPE_CHECKING:
    from ..device.accepted import Installed

# Libraries that are loaded before the first message.
PRELOADED = ("flwr.app", "numpy", "torch")

# The name of a reply's file below the state folder, until the client keeps it as the last reply.
ANSWER_FILE = "answer"

# Longest time to live of a message: ten years.
LONGEST_SECONDS = 3.2e8

# Flower's errors for a message that an app has no handler for. They pass through `reason_of`
# unchanged: a server that sends a QUERY recognises them.
NO_HANDLER = re.compile(
    r"(ValueError: )?(No (train|evaluate|query) function registered with name '\w+'|Invalid message"
    r" type: [a-z.]+)"
)


@dataclass(frozen=True)
class Task:
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
    def failed(cls, code: int, reason: str) -> Answer:
        """Log an error and return it as the answer."""
        log.error("answered with error %d: %s", code, reason)
        return cls(code=code, reason=reason)


def answer(installed: Installed, node_config: Mapping[str, Any], task: Task) -> Answer:
    """Return the app's reply to a task, or an error with the reason."""
    from fairbloom.errors import is_expected
    from fairbloom.protocol.error_codes import ErrorCode

    from ..device.accepted import RunRefusedError

    try:
        return call_app(installed, node_config, task)
    except RunRefusedError as error:
        return Answer.failed(ErrorCode.INVALID_FAB, str(error))
    except Exception as error:  # a failure is the reply to its message, and no more
        log.error("the client app raised %s", error, exc_info=not is_expected(error))
        return Answer.failed(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason_of(error))


def call_app(installed: Installed, node_config: Mapping[str, Any], task: Task) -> Answer:
    """Return the app's reply and its new state; changes to the state are lost if the app raises."""
    from flwr.app import Context, Message

    from fairbloom.client.guard.audit_log import log_exchange
    from fairbloom.errors import ReportableError, reportable
    from fairbloom.flower import address, identify, set_message_id
    from fairbloom.recorddict import deserialize, serialize, serialize_in_pieces

    from ..device.accepted import RunDescription

    head = Head.FromString(task.head)
    described = json.loads(task.settings)
    # Flower takes a message's sender from this: the server, node 1, until the message is made, and
    # this node afterwards, for the reply.
    identify(run_id=head.run, node_id=1, task_id=0)
    message = Message(
        deserialize(task.content.map()),
        task.node,
        head.type,
        ttl=min(max(1.0, head.seconds), LONGEST_SECONDS),  # in this order NaN becomes 1
        group_id=head.round,
    )
    set_message_id(message, head.id)
    identify(run_id=head.run, node_id=task.node, task_id=0)
    context = Context(head.run, task.node, dict(node_config), deserialize(task.state), {})
    run = RunDescription(
        head.run, described["distribution"], described["version"], described["settings"]
    )
    app, context.run_config = installed.accept(run, context)
    try:
        reply = address(log_exchange(message, context, app), message)
    except SystemExit as end:  # must not end this process: the server gets an error instead
        raise ReportableError(f"SystemExit: {end}", reportable(end)) from end
    new_state: bytes | None = serialize(context.state)
    if new_state == task.state:
        new_state = None
    if reply.has_error():
        return Answer((), reply.error.code, str(reply.error.reason), new_state)
    return Answer(serialize_in_pieces(reply.content), state=new_state)


def answer_next(pipe: Connection, installed: Installed, node_config: Mapping[str, Any]) -> bool:
    """Answer the next task; return whether its content, or that of the answer, is in a file."""
    task, (content,) = receive(pipe)
    made = answer(installed, node_config, replace(task, content=content))
    file = Path(str(node_config["state-dir"]), ANSWER_FILE)

    def open_file() -> FileIO:
        file.unlink(missing_ok=True)  # the client may still read it, if it could not keep it
        return FileIO(file, "x+")

    answered = write(made.pieces, open_file, memory=0)
    send(pipe, replace(made, pieces=()), [answered])
    return content.file is not None or answered.file is not None


def reason_of(error: Exception) -> str:
    """Return the part of an app's error that the server may see: it quotes no data."""
    from fairbloom.errors import reportable

    text = str(error)
    if NO_HANDLER.fullmatch(text):
        return text
    return reportable(error)


def main(parent: int) -> None:
    """Answer tasks for the client that started this process: `app_process.py FD SETTINGS`."""
    end_with_parent(parent)
    from fairbloom.client.guard.limits import Limits
    from fairbloom.logs import colour_on_terminals_alone, escape_all_records

    from ..device.accepted import Installed

    pipe = Connection(int(sys.argv[1]))
    given = json.loads(sys.argv[2])
    installed = Installed.of(given["app"], tuple(given["allow"]), Limits.of(given["limits"]))
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    colour_on_terminals_alone()
    escape_all_records()
    pipe.send(True)  # all libraries are loaded
    with contextlib.suppress(EOFError):  # the client's process has ended
        while True:
            if answer_next(pipe, installed, given["node"]):
                free_cycles()

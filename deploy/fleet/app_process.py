"""The process that calls a device's app, and keeps it loaded.

worker.py starts and ends it. It opens no port: tasks and answers go through an inherited pipe.
"""

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from io import FileIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from fairbloom.client.guard.accepted_settings import SettingRefusedError
from fairbloom.client.guard.limits import Limits
from fairbloom.client.messages import log_exchange
from fairbloom.errors import ReportableError, is_expected, reportable
from fairbloom.flower import address, identify, set_message_id
from fairbloom.logs import colour_on_terminals_alone, escape_all_records, log
from fairbloom.protocol.error_codes import ErrorCode, code_of
from fairbloom.protocol.names import RELEASE
from fairbloom.recorddict import deserialize, serialize, serialize_in_pieces
from fairbloom.system.parents import end_with_parent
from fairbloom.system.retry import deadline, retrying_writes

from ..device.accepted import Installed, RunDescription
from ..processes import free_cycles
from .content import write
from .messages import seconds_left
from .passing import ANSWER_FILE, Answer, PassedTask, receive, send
from .wire_pb2 import Head

# Flower's errors for a message that an app has no handler for. They pass through `reason_of`
# unchanged: a server that sends a QUERY recognises them.
NO_HANDLER = re.compile(
    r"(ValueError: )?(No (train|evaluate|query) function registered with name '\w+'|Invalid message"
    r" type: [a-z.]+)"
)


def answer(installed: Installed, node_config: Mapping[str, Any], task: PassedTask) -> Answer:
    """Return the app's reply to a task, or an error with the reason."""
    try:
        return call_app(installed, node_config, task)
    except SettingRefusedError as error:
        return Answer.failed(ErrorCode.INVALID_FAB, str(error))
    except Exception as error:  # a failure is the reply to its message, and no more
        log.error("the client app raised %s", error, exc_info=not is_expected(error))
        return Answer.failed(code_of(error), reason_of(error))


def call_app(installed: Installed, node_config: Mapping[str, Any], task: PassedTask) -> Answer:
    """Return the app's reply and its new state; changes to the state are lost if the app raises."""
    head = Head.FromString(task.head)
    described = json.loads(task.settings)
    # Flower takes a message's sender from this: the server, node 1, until the message is made, and
    # this node afterwards, for the reply.
    identify(run_id=head.run, node_id=1, task_id=0)
    seconds = seconds_left(head)
    message = Message(
        deserialize(task.content.map()),
        task.node,
        head.type,
        ttl=seconds,
        group_id=head.round,
    )
    set_message_id(message, head.id)
    identify(run_id=head.run, node_id=task.node, task_id=0)
    context = Context(head.run, task.node, dict(node_config), deserialize(task.state), {})
    question = ""
    # the reply to a released model has no number of the data
    if head.type != RELEASE and message.content.array_records:
        question = f"{head.type} {head.digest.hex()}"
    run = RunDescription(
        head.run,
        described["distribution"],
        described["version"],
        described["settings"],
        question,
    )
    try:
        with retrying_writes(deadline(seconds)):
            app, context.run_config = installed.accept(run, context)
            reply = address(log_exchange(message, context, app), message)
    except SystemExit as end:  # must not end this process: the server gets an error instead
        raise ReportableError(f"SystemExit: {end}", reportable(end)) from end
    state = serialize(context.state)
    new_state = None if state == task.state else state
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
    text = str(error)
    return text if NO_HANDLER.fullmatch(text) else reportable(error)


def main(parent: int) -> None:
    """Answer tasks for the client that started this process: `app_process.py FD SETTINGS`."""
    end_with_parent(parent)
    pipe = Connection(int(sys.argv[1]))
    given = json.loads(sys.argv[2])
    installed = Installed.of(given["app"], tuple(given["allow"]), Limits.of(given["limits"]))
    # most apps need it, and it takes longer to load than a message should wait
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    colour_on_terminals_alone()
    escape_all_records()
    pipe.send(True)  # all libraries are loaded
    with contextlib.suppress(EOFError):  # the client's process has ended
        while True:
            if answer_next(pipe, installed, given["node"]):
                free_cycles()

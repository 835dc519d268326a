"""The process that calls the client's app: it keeps the app loaded.

It is started and ended by worker.py, and opens no port: tasks and answers go through an inherited pipe.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import run_from_proto
from flwr.proto import run_pb2

from fairbloom.client.limits import Limits
from fairbloom.errors import ReportableError, is_expected, reportable
from fairbloom.flower import ErrorCode, address, deserialize, identify, serialize
from fairbloom.logs import colour_on_terminals_alone
from fairbloom.system.parents import end_with_parent

from ...device.bundles import BundleRefusedError, Installed
from .messages import Answer, Task, pack, unpack

PRELOADED = ("numpy", "torch")
"""Libraries that are loaded before the first message."""

NO_HANDLER = re.compile(
    r"(ValueError: )?(No (train|evaluate|query) function registered with name '\w+'|Invalid message type: [a-z.]+)"
)
"""What Flower raises where an app has no handler for a message; a server that asks by QUERY knows it by these words."""

log = logging.getLogger("flwr")


class AppError(ReportableError):
    """What the app raised, in words: the exception itself would end this process."""


def answer(installed: Installed, node_config: Mapping[str, Any], task: Task) -> Answer:
    """Return the app's reply to a task, or an error with the reason."""
    message = unpack(task)
    try:
        reply, state = call_app(installed, node_config, task, message)
        return pack(address(reply, message), state)
    except BundleRefusedError as error:
        code, reason = ErrorCode.INVALID_FAB, str(error)
    except Exception as error:  # one message's failure is one error reply
        log.error("the client app raised %s", error, exc_info=not is_expected(error))
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason_of(error)
    log.error("answered with error %d: %s", code, reason)
    return pack(Message(Error(code, reason), reply_to=message))


def call_app(
    installed: Installed, node_config: Mapping[str, Any], task: Task, message: Message
) -> tuple[Message, bytes | None]:
    """Return the app's reply and its state after it; what it changes of its state is lost where it raises."""
    run = run_from_proto(run_pb2.Run.FromString(task.run))
    identify(run_id=run.run_id, node_id=task.node, task_id=0)
    state = deserialize(task.state) if task.state else RecordDict()
    context = Context(run.run_id, task.node, dict(node_config), state, {}, series_id=run.series_id)
    app, context.run_config = installed(task.bundle, run, context)
    return reply_of(app, message, context, task.state)


def reply_of(app: ClientApp, message: Message, context: Context, before: bytes) -> tuple[Message, bytes | None]:
    """Return an app's reply, and its state after it (serialized), None where that is as `before`."""
    try:
        reply = app(message=message, context=context)
    except SystemExit as end:
        raise AppError(f"SystemExit: {end}", reportable(end)) from end
    kept = serialize(context.state)
    return reply, None if kept == before else kept


def reason_of(error: Exception) -> str:
    """Return what the server learns of an app's error: what quotes no data, and that the app has no such handler."""
    said = str(error)
    return said if NO_HANDLER.fullmatch(said) else reportable(error)


def serve(pipe: Connection, answer: Callable[[Any], object]) -> None:
    """Say that all is loaded, and answer tasks until nobody asks any more."""
    pipe.send(True)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(answer(task))


def preload(names: tuple[str, ...]) -> None:
    """Import libraries; one that is not installed is left out."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main(parent: int) -> None:
    """Answer tasks for the client that started this process, as long as it lives: `app_process.py FD SETTINGS`."""
    end_with_parent(parent)
    pipe, given = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    colour_on_terminals_alone()
    installed = Installed.of(given["app"], tuple(given["allow"]), Limits.of(given["limits"]))
    preload(PRELOADED)
    serve(pipe, lambda task: answer(installed, given["node"], task))

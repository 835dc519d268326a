"""The process that calls a device's app, as deploy/flower/device/app_process.py, with messages of the fleet port."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from fairbloom.logs import log
from fairbloom.system.parents import end_with_parent

from .wire_pb2 import Head


@dataclass(frozen=True)
class Task:
    """A message with all that is needed to answer it.

    `settings` is the JSON that came with the run, `data` the content, `state` what the app keeps of the run (b"" for
    nothing).
    """

    node: int
    head: bytes
    settings: str
    data: bytes = field(repr=False)
    state: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Answer:
    """A reply: content, or an error's code and reason; `state` is None where the app keeps what it had."""

    data: bytes = field(default=b"", repr=False)
    code: int = 0
    reason: str = ""
    state: bytes | None = field(default=None, repr=False)

    @classmethod
    def failed(cls, code: int, reason: str) -> Answer:
        """Return an error, and log it."""
        log.error("answered with error %d: %s", code, reason)
        return cls(code=code, reason=reason)


def answer(installed: Any, node_config: Mapping[str, Any], task: Task) -> Answer:
    """Return the app's reply to a task, or an error with the reason."""
    from fairbloom.errors import is_expected
    from fairbloom.flower import ErrorCode

    from ..device.bundles import BundleRefusedError
    from ..flower.device.app_process import reason_of

    try:
        return call_app(installed, node_config, task)
    except BundleRefusedError as error:
        return Answer.failed(ErrorCode.INVALID_FAB, str(error))
    except Exception as error:  # one message's failure is one error reply
        log.error("the client app raised %s", error, exc_info=not is_expected(error))
        return Answer.failed(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason_of(error))


def call_app(installed: Any, node_config: Mapping[str, Any], task: Task) -> Answer:
    """Return the app's reply and its state after it; what it changes of its state is lost where it raises."""
    from flwr.app import Context, Message, RecordDict

    from fairbloom.flower import deserialize, identify, serialize, set_message_id

    from ..flower.device.app_process import reply_of

    head, told = Head.FromString(task.head), json.loads(task.settings)
    # A message of the server to this node, which writes its reply after that.
    identify(run_id=head.run, node_id=1, task_id=0)
    message = Message(deserialize(task.data), task.node, head.type, ttl=max(head.seconds, 1.0), group_id=head.round)
    set_message_id(message, head.id)
    identify(run_id=head.run, node_id=task.node, task_id=0)
    state = deserialize(task.state) if task.state else RecordDict()
    context = Context(head.run, task.node, dict(node_config), state, {})
    run = SimpleNamespace(run_id=head.run, fab_id=told["distribution"], fab_version=told["version"])
    app, context.run_config = installed.take(told["settings"], run, context)
    reply, changed = reply_of(app, message, context, task.state)
    if reply.has_error():
        return Answer(b"", reply.error.code, str(reply.error.reason), changed)
    return Answer(serialize(reply.content), state=changed)


def main(parent: int) -> None:
    """Answer tasks for the client that started this process, as long as it lives: `app_process.py FD SETTINGS`."""
    end_with_parent(parent)
    from fairbloom.client.limits import Limits
    from fairbloom.logs import colour_on_terminals_alone

    from ..device.bundles import Installed
    from ..flower.device.app_process import PRELOADED, preload, serve

    pipe, given = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    colour_on_terminals_alone()
    installed = Installed.of(given["app"], tuple(given["allow"]), Limits.of(given["limits"]))
    preload(PRELOADED)
    serve(pipe, lambda task: answer(installed, given["node"], task))

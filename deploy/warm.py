"""A SuperNode that keeps its ClientApp warm: the one file that replaces names inside Flower.

Flower starts a new Python process for every message and waits in polls of 3 seconds. Here the app stays in the
SuperNode's own process, or, isolated, each message is answered by a child of a fork server that has the libraries
loaded; and a node that is busy asks for work often. No port is opened for app processes, and nothing of a bundle is
read before it is checked. Everything else is Flower's: connection, keys, heartbeat, transfer.

Started by `fairbloom client`, with `[--isolated] [--any-bundle | --app APP] -- FLOWER_SUPERNODE_ARGUMENTS`.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from grpc import RpcError, StatusCode

from .answers import Answer, AppError, CrashedError, Isolated, Resident
from .bundles import BundleRefusedError, Installed, Unpacked
from .client import APP, say
from .processes import Retries, end_with, missing_names, retry_soon

if TYPE_CHECKING:
    from flwr.app import Context, Message

LOOP = "flwr.supernode.start_client_internal"
COMMAND = "flwr.supernode.cli.flower_supernode"
OBJECTS = "flwr.supercore.inflatable.inflatable_utils"
STATE = "flwr.supernode.nodestate.in_memory_nodestate"

REPLACED: Mapping[str, Iterable[str]] = {
    f"{LOOP}:_push_messages": ("state", "object_store", "send", "push_object"),
    f"{LOOP}:time.sleep": (),
    f"{LOOP}:make_simple_grpc_retry_invoker": (),
    f"{LOOP}:get_fused_config_from_fab": ("fab_file", "run"),
    f"{COMMAND}:_start_supernode_http_api": ("config", "state_factory"),
    f"{OBJECTS}:pull_objects": ("initial_backoff",),
    f"{OBJECTS}:pull_and_inflate_object_from_tree": ("initial_backoff",),
}
USED: Mapping[str, Iterable[str]] = {
    f"{LOOP}:_insert_message": ("msg", "state", "store"),
    f"{OBJECTS}:inflate_object_from_contents": ("object_id", "object_contents"),
    f"{OBJECTS}:ObjectPushError": (),
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": ("tree",),
    "flwr.clientapp.utils:get_load_client_app_fn": ("default_app_ref", "app_path", "multi_app"),
    "flwr.cli.install:install_from_fab": ("fab_file", "skip_prompt"),
    "flwr.common.config:get_project_dir": ("fab_id", "fab_version", "fab_hash"),
    "flwr.supercore.exit:add_exit_handler": ("exit_handler",),
    "flwr.supercore.task_identity:TaskIdentity": (),
    f"{STATE}:InMemoryNodeState.get_messages": ("is_reply",),
    f"{STATE}:InMemoryNodeState.delete_messages": ("message_ids",),
    f"{STATE}:InMemoryNodeState.get_tasks": ("statuses",),
    f"{STATE}:InMemoryNodeState.finish_task": ("task_id", "sub_status", "details"),
    f"{STATE}:InMemoryNodeState.get_run": ("run_id",),
    f"{STATE}:InMemoryNodeState.get_fab": ("fab_hash",),
    f"{STATE}:InMemoryNodeState.get_run_series_context": ("series_id",),
    f"{STATE}:InMemoryNodeState.set_run_series_context": ("series_id", "context"),
    f"{STATE}:InMemoryNodeState.record_message_processing_start": ("message_id",),
    f"{STATE}:InMemoryNodeState.record_message_processing_end": ("message_id",),
    "flwr.supercore.object_store.object_store:ObjectStore.get_object_tree": ("object_id",),
    "flwr.supercore.object_store.object_store:ObjectStore.delete": ("object_id",),
    f"{COMMAND}:flower_supernode": (),
    "flwr.supercore.error:FlowerError.from_json": ("value",),
}
RELIED_ON = {**REPLACED, **USED}
"""Names inside Flower, as module:attribute, with the parameters that are relied on."""

BACKOFF_SECONDS = 0.05
"""First wait for an object that is announced and not there yet; Flower's is 1 s, and doubles."""

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 1.0
"""Shortest and longest pause between polls for work."""

AWAY = "the SuperLink does not answer, or has a fault of its own: trying again until it answers"
"""What a client says, once, while Flower tries to reach the SuperLink."""

log = logging.getLogger("flwr")


# In Flower's loop ---------------------------------------------------------------------------------------------------


class Pace:
    """How long a node waits before it asks for work again: a tenth of the time it has been idle.

    Busy nodes answer within hundredths of a second; the polls of a node that waits for hours cost next to nothing.
    """

    def __init__(self) -> None:
        self._idle_since = time.monotonic()

    def worked(self) -> None:
        """Note that a message was answered just now."""
        self._idle_since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait, at most `seconds`."""
        tenth = (time.monotonic() - self._idle_since) / 10
        time.sleep(min(seconds, LONGEST_SECONDS, max(SHORTEST_SECONDS, tenth)))


def keep_warm(answer: Answer) -> None:
    """Let Flower's loop answer messages by `answer`, in this process, and wait less."""
    loop, objects = importlib.import_module(LOOP), importlib.import_module(OBJECTS)
    pace, push = Pace(), loop._push_messages

    def answer_and_push(state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        refused = list[str]()

        def send_head(*head: Any) -> Any:
            try:
                return send(*head)
            except RpcError as error:
                raise RefusedError(in_words(error)) from None  # Flower logs it in one line, and goes on

        def push_part(*part: Any) -> None:
            # Refused, too, where the SuperLink has it already and only the receipt was lost: the others are still due.
            try:
                push_object(*part)
            except objects.ObjectPushError:
                refused.append(part[2])
            except RpcError as error:
                raise RefusedError(in_words(error)) from None

        answer_next(state, object_store, answer)
        push(state=state, object_store=object_store, send=send_head, push_object=push_part)
        if refused:
            log.warning("the SuperLink did not store %d parts of the reply: it has them, or refuses them", len(refused))
        pace.worked()

    make_invoker = loop.make_simple_grpc_retry_invoker
    loop.make_simple_grpc_retry_invoker = lambda: patient(make_invoker())  # type: ignore[attr-defined]
    loop._push_messages = answer_and_push  # type: ignore[attr-defined]
    loop.time = SimpleNamespace(sleep=pace.sleep)  # type: ignore[attr-defined]
    for function in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        function.__kwdefaults__["initial_backoff"] = BACKOFF_SECONDS


def read_no_bundles() -> None:
    """Keep Flower's loop from reading a bundle when a message of a new run comes: `Installed` does it, with bounds.

    What Flower reads has no bound, and what it raises ends the loop.
    """
    importlib.import_module(LOOP).get_fused_config_from_fab = lambda fab_file, run: {}  # type: ignore[attr-defined]


def open_no_port() -> None:
    """Keep a SuperNode from serving app processes beside it, of which a warm node has none.

    Every account of the device could ask there for a message, and answer it in this client's name.
    """
    nothing = threading.Thread(target=int, name="no-runtime-api")
    nothing.start()
    server = SimpleNamespace(should_exit=False, force_exit=False)
    importlib.import_module(COMMAND)._start_supernode_http_api = lambda config, state_factory: (server, nothing)  # type: ignore[attr-defined]


class RefusedError(Exception):
    """A call that the SuperLink refused, in one line."""


def patient(invoker: Any) -> Any:
    """Let a call be tried again as well when the SuperLink had a fault of its own that may pass.

    Those are INTERNAL, as when its database is locked or its disk is full, and RESOURCE_EXHAUSTED, when it has too
    many calls at once. Flower gives up then: the message, the reply or the node's heartbeat is lost. What is too large
    for one message is RESOURCE_EXHAUSTED as well, and stays too large.
    """
    gives_up, said = invoker.should_giveup, threading.Event()

    def should_giveup(error: Any) -> bool:
        if error.code() == StatusCode.RESOURCE_EXHAUSTED:
            return "larger than max" in str(error.details())
        if error.code() == StatusCode.UNAUTHENTICATED and not said.is_set():
            said.set()
            log.error("%s", in_words(error))  # Flower ends the node for it without a word
        return error.code() != StatusCode.INTERNAL and bool(gives_up(error))

    invoker.should_giveup = should_giveup
    return invoker


def in_words(error: Any) -> str:
    """Return what a call was refused for, in one line: its status, and Flower's code and words where it has them."""
    from flwr.supercore.error import FlowerError

    details = str(error.details())
    refusal = FlowerError.from_json(details)
    return f"{error.code().name}: " + (f"[code: {refusal.code}] {refusal.message}" if refusal else details[:500])


def end_without_heartbeat(failed: threading.ExceptHookArgs) -> None:
    """Say in one line why a thread of Flower's has ended, and end the node: without heartbeat it is taken for dead."""
    if not isinstance(failed.exc_value, RpcError):
        threading.__excepthook__(failed)
    elif failed.exc_value.code() != StatusCode.UNAUTHENTICATED:  # at which Flower ends the node itself
        log.error("the heartbeat was refused: %s", in_words(failed.exc_value))
        leave(1)


def answer_next(state: Any, store: Any, answer: Answer) -> None:
    """Take the message that came, let it be answered, and lay the reply and the context where Flower looks for them."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    received = [message.metadata.message_id for message in state.get_messages(is_reply=False)]
    if not received:  # Flower itself has answered, because it trusts the bundle's signature not
        return
    *torn, message_id = received
    state.delete_messages(message_ids=torn)  # of runs that ended while their message came: Flower leaves them behind
    for left in torn:
        store.delete(left)
    tree = store.get_object_tree(message_id)
    contents = {part.object_id: store.get(part.object_id) for part in iterate_object_tree(tree)}
    message: Any = inflate_object_from_contents(message_id, contents)
    message.metadata.__dict__["_message_id"] = message_id
    store.delete(message_id)
    run = state.get_run(message.metadata.run_id)
    state.record_message_processing_start(message_id)
    task_id = _drop_tasks(state)
    reply, context = _answered(answer, state, run, task_id, message)
    state.record_message_processing_end(message_id)
    importlib.import_module(LOOP)._insert_message(reply, state, store)
    if context is not None:
        state.set_run_series_context(run.series_id, context)


def _answered(answer: Answer, state: Any, run: Any, task_id: int, message: Message) -> tuple[Message, Context | None]:
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, state.get_node_id(), task_id
    context = state.get_run_series_context(run.series_id)
    try:
        return answer(state.get_fab(run.fab_hash), run, task_id, message, context)
    except BundleRefusedError as error:
        code, reason = ErrorCode.INVALID_FAB, str(error)
    except CrashedError as error:
        code, reason = ErrorCode.CLIENT_APP_CRASHED, str(error)
    except AppError as error:
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)
    except Exception as error:  # one message's failure is one error reply
        log.exception("the client app raised")
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}"
    log.error("answered with error %d: %s", code, reason)
    return Message(Error(code, reason), reply_to=message), None


def _drop_tasks(state: Any) -> int:
    """Take the message's task off the node's list, which is for processes beside it, and return its id."""
    from flwr.common.constant import Status, SubStatus

    task_id = 0
    for task in state.get_tasks(statuses=[Status.PENDING]):
        task_id = int(task.task_id)
        state.finish_task(task_id, SubStatus.STOPPED, "answered in the SuperNode's process")
        getattr(state, "task_store", {}).pop(task_id, None)  # it would grow by one a message
    return task_id


# Start --------------------------------------------------------------------------------------------------------------


class Remedies(logging.Handler):
    """Says, under Flower's own words, what would help."""

    SAID: Mapping[str, str] = {
        "[code: 2004]": "the SuperLink does not admit this key. Ask the federation's operator, whose commands these "
        "are: it is not registered (fairbloom deploy enroll), or was revoked (enroll the client anew), or a node with "
        "it is connected already: one that was killed counts as connected for a minute",
        "UNAUTHENTICATED": "the SuperLink refuses this node's signature: the key was revoked by the federation's "
        "operator, or the SuperLink has lost its database, or this device's clock is more than 5 s ahead or 5 min "
        "behind (timedatectl)",
    }

    def emit(self, record: logging.LogRecord) -> None:
        """Print the remedy of a known fault."""
        message = record.getMessage()
        for sign, remedy in self.SAID.items():
            if sign in message:
                say(remedy)


def main() -> None:
    """Run a SuperNode, warm where this version of Flower allows."""
    parser = argparse.ArgumentParser(prog="fairbloom.deploy.warm")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--any-bundle", action="store_true")
    parser.add_argument("--app", default=APP)
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("supernode", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    end_with(os.getppid())
    arguments = [word for word in chosen.supernode if word != "--"]
    missing = missing_names(RELIED_ON)
    if missing and not chosen.any_bundle:
        say(
            f"this version of Flower has no {'; '.join(missing)}: without, this client cannot keep code of the server "
            "from running here; install the pinned version of Flower"
        )
        leave(1)
    if missing:
        say(
            f"this version of Flower has no {'; '.join(missing)}: going on in Flower's own way, with a new process a "
            "message and its own waits; install the pinned version for rounds of less than a second"
        )
    else:
        bundles = Unpacked() if chosen.any_bundle else Installed.of(chosen.app, tuple(chosen.allow))
        keep_warm((Isolated if chosen.isolated else Resident)(bundles))
        open_no_port()
        if not chosen.any_bundle:
            read_no_bundles()
        arguments += ["--isolation", "process"]  # no app processes of Flower's beside ours
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower = logging.getLogger("flwr")
    flower.addHandler(Remedies())
    flower.addFilter(Retries(say, AWAY))
    retry_soon("grpc")
    threading.excepthook = end_without_heartbeat
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)
    leave(1)  # Flower's loop ends only by a fault, which it has logged


def leave(code: int) -> NoReturn:
    """End this process at once, whatever threads are left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

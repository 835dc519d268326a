"""A SuperNode that keeps its ClientApp warm: the one file of a client that replaces names inside Flower.

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
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from grpc import RpcError

from fairbloom.logs import colour_on_terminals_alone
from fairbloom.system.parents import end_with_parent

from ...device.bundles import Installed
from ...device.client import APP
from ...device.supervisor import say
from ...processes import leave
from ..relied_on import missing_names
from ..retries import LONGEST_RETRY_SECONDS, Retries, retry_soon
from .answers import Answer, Isolated, Resident
from .channel import create_channel
from .faults import AWAY, RefusedError, Remedies, end_without_heartbeat, in_words, patient
from .inbox import LOOP, answer_next
from .unpacked import Unpacked

COMMAND = "flwr.supernode.cli.flower_supernode"
OBJECTS = "flwr.supercore.inflatable.inflatable_utils"
CONNECTION = "flwr.client.grpc_rere_client.connection"
HEARTBEAT = "flwr.supercore.heartbeat"
STATE = "flwr.supernode.nodestate.in_memory_nodestate"

REPLACED: Mapping[str, Iterable[str]] = {
    f"{LOOP}:_push_messages": ("state", "object_store", "send", "push_object"),
    f"{LOOP}:time.sleep": (),
    f"{LOOP}:make_simple_grpc_retry_invoker": (),
    f"{LOOP}:get_fused_config_from_fab": ("fab_file", "run"),
    f"{COMMAND}:_start_supernode_http_api": ("config", "state_factory"),
    f"{CONNECTION}:RuntimeVersionClientInterceptor": ("component_name",),
    f"{CONNECTION}:create_channel": (
        *("server_address", "insecure", "root_certificates", "max_message_length", "interceptors"),
    ),
    f"{HEARTBEAT}:exponential": ("max_delay",),
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


def say_version() -> None:
    """Let the node say, when it connects, which version of Fairbloom it runs."""
    from .introduction import Introduction

    importlib.import_module(CONNECTION).RuntimeVersionClientInterceptor = Introduction  # type: ignore[attr-defined]


def open_no_port() -> None:
    """Keep a SuperNode from serving app processes beside it, of which a warm node has none.

    Every account of the device could ask there for a message, and answer it in this client's name.
    """
    nothing = threading.Thread(target=int, name="no-runtime-api")
    nothing.start()
    server = SimpleNamespace(should_exit=False, force_exit=False)
    importlib.import_module(COMMAND)._start_supernode_http_api = lambda config, state_factory: (server, nothing)  # type: ignore[attr-defined]


def connect_soon() -> None:
    """Let Flower's node connect by channels that are up again soon after the SuperLink, or the network, is."""
    connection: Any = importlib.import_module(CONNECTION)
    heartbeat: Any = importlib.import_module(HEARTBEAT)
    exponential = heartbeat.exponential
    connection.create_channel = create_channel
    heartbeat.exponential = lambda max_delay: exponential(max_delay=min(max_delay, LONGEST_RETRY_SECONDS))


# Start --------------------------------------------------------------------------------------------------------------


def main(parent: int) -> None:
    """Run a SuperNode, warm where this version of Flower allows, as long as the parent lives."""
    end_with_parent(parent)
    parser = argparse.ArgumentParser(prog="fairbloom.deploy.flower.device.supernode")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--any-bundle", action="store_true")
    parser.add_argument("--app", default=APP)
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("supernode", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
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
        say_version()
        connect_soon()
        if not chosen.any_bundle:
            read_no_bundles()
        arguments += ["--isolation", "process"]  # no app processes of Flower's beside ours
    from flwr.supernode.cli.flower_supernode import flower_supernode

    colour_on_terminals_alone()
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

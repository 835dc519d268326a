"""A SuperNode that keeps its ClientApp warm: what of Flower's is replaced, and the start of the process.

Flower starts a new Python process for every message and waits in polls of 3 seconds. Here the app stays in the
SuperNode's own process, or, isolated, each message is answered by a child of a fork server that has the libraries
loaded; and a node that is busy asks for work often. No port is opened for app processes, and nothing of a bundle is
read before it is checked. Everything else is Flower's: connection, keys, heartbeat, transfer.

Started by `fairbloom client`, with `[--isolated] [--any-bundle | --app APP] -- FLOWER_SUPERNODE_ARGUMENTS`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import grpc
from grpc import RpcError

from fairbloom.client.limits import Limits
from fairbloom.flower import ObjectPushError, set_waits_for_objects
from fairbloom.logs import colour_on_terminals_alone
from fairbloom.system.parents import end_with_parent

from ...device.bundles import Installed
from ...device.client import APP
from ...device.supervisor import say
from ...device.work import Work
from ...processes import leave
from ..relied_on import CONNECTION, GRPC_RETRY, HEARTBEAT, INFLATABLE, LOOP, SUPERNODE, look_up, replace
from ..retries import LONGEST_RETRY_SECONDS, Retries, retry_soon
from .answers import Answer, Droppable, Isolated, Resident
from .channel import WorkReport, create_channel
from .faults import AWAY, RefusedError, Remedies, end_without_heartbeat, refusal_reason, retry_faults
from .inbox import answer_next
from .unpacked import Unpacked

BACKOFF_SECONDS = 0.05
"""First wait for an object that is announced and not there yet; Flower's is 1 s, and doubles."""

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 1.0
"""Shortest and longest pause between polls for work."""

log = logging.getLogger("flwr")


# In Flower's loop ---------------------------------------------------------------------------------------------------


class PollPause:
    """How long a node waits before it asks for work again: a tenth of the time it has been idle.

    Busy nodes answer within hundredths of a second, and idle nodes cost next to nothing.
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
    pace, push = PollPause(), look_up(LOOP, "_push_messages")
    make_invoker = look_up(LOOP, "make_simple_grpc_retry_invoker")

    def answer_and_push(state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        refused = list[str]()

        def send_head(*head: Any) -> Any:
            try:
                return send(*head)
            except RpcError as error:
                raise RefusedError(refusal_reason(error)) from None  # Flower logs it in one line, and goes on

        def push_part(*part: Any) -> None:
            # Refused, too, where the SuperLink has it already and only the receipt was lost: the others still go.
            try:
                push_object(*part)
            except ObjectPushError:
                refused.append(part[2])
            except RpcError as error:
                raise RefusedError(refusal_reason(error)) from None

        answer_next(state, object_store, answer)
        push(state=state, object_store=object_store, send=send_head, push_object=push_part)
        if refused:
            log.warning("the SuperLink did not store %d parts of the reply: it has them, or refuses them", len(refused))
        pace.worked()

    replace(LOOP, "make_simple_grpc_retry_invoker", lambda: retry_faults(make_invoker()))
    replace(LOOP, "_push_messages", answer_and_push)
    replace(LOOP, "time", SimpleNamespace(sleep=pace.sleep))
    set_waits_for_objects(initial_backoff=BACKOFF_SECONDS)
    look_up(INFLATABLE, "pull_and_inflate_object_from_tree").__kwdefaults__["initial_backoff"] = BACKOFF_SECONDS


def read_no_bundles() -> None:
    """Keep Flower's loop from reading bundles: without bounds, and an error ends the loop. `Installed` has bounds."""
    replace(LOOP, "get_fused_config_from_fab", lambda fab_file, run: {})


def open_no_port() -> None:
    """Keep a SuperNode from serving app processes, of which a warm node has none.

    Every account of the device could ask there for a message, and answer it in this client's name.
    """
    nothing = threading.Thread(target=int, name="no-runtime-api")
    nothing.start()
    server = SimpleNamespace(should_exit=False, force_exit=False)
    replace(SUPERNODE, "_start_supernode_http_api", lambda config, state_factory: (server, nothing))


def connect_soon() -> None:
    """Let Flower's node connect by channels that are up again soon after the SuperLink, or the network, is."""
    exponential = look_up(HEARTBEAT, "exponential")
    replace(CONNECTION, "create_channel", create_channel)
    replace(HEARTBEAT, "exponential", lambda max_delay: exponential(max_delay=min(max_delay, LONGEST_RETRY_SECONDS)))


def drop_unwanted(work: Work) -> None:
    """Let heartbeats say what the node works on, and drop what nobody wants."""
    create = look_up(CONNECTION, "create_channel")
    replace(
        CONNECTION,
        "create_channel",
        lambda *given, **how: grpc.intercept_channel(create(*given, **how), WorkReport(work)),
    )


# Start --------------------------------------------------------------------------------------------------------------


def main(parent: int) -> None:
    """Run a SuperNode that keeps its app warm, as long as the parent lives."""
    end_with_parent(parent)
    parser = argparse.ArgumentParser(prog="fairbloom.deploy.flower.device.supernode")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--any-bundle", action="store_true")
    parser.add_argument("--app", default=APP)
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--limits", type=json.loads, default={})
    parser.add_argument("supernode", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    arguments = [word for word in chosen.supernode if word != "--"]
    limits = Limits.of(chosen.limits)
    bundles = Unpacked() if chosen.any_bundle else Installed.of(chosen.app, tuple(chosen.allow), limits)
    work = Work(limits.round_seconds)
    keep_warm(Droppable((Isolated if chosen.isolated else Resident)(bundles), work))
    open_no_port()
    connect_soon()
    drop_unwanted(work)
    if not chosen.any_bundle:
        read_no_bundles()
    colour_on_terminals_alone()
    flower = logging.getLogger("flwr")
    flower.addHandler(Remedies())
    flower.addFilter(Retries(say, AWAY))
    retry_soon(GRPC_RETRY)
    threading.excepthook = end_without_heartbeat
    # App processes of Flower's beside ours would be one more way to answer a message.
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process"]
    try:
        look_up(SUPERNODE, "flower_supernode")()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)
    leave(1)  # Flower's loop ends only by a fault, which it has logged

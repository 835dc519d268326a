"""What a client's node does and says when its SuperLink is away, has a fault of its own, or refuses a call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from flwr.supercore.error import FlowerError
from grpc import RpcError, StatusCode

from ...device.supervisor import say
from ...processes import leave

AWAY = "the SuperLink does not answer, or has a fault of its own: trying again until it answers"
"""What a client says, once, while Flower tries to reach the SuperLink."""

log = logging.getLogger("flwr")


class RefusedError(Exception):
    """A call that the SuperLink refused, in one line."""


def retry_faults(invoker: Any) -> Any:
    """Also retry a call after a fault of the SuperLink that may pass: Flower would lose the message or heartbeat.

    Such faults are INTERNAL, as when its database is locked or its disk is full, and RESOURCE_EXHAUSTED, when it has
    too many calls at once. A message that is too large is RESOURCE_EXHAUSTED as well, but stays too large.
    """
    gives_up, said = invoker.should_giveup, threading.Event()

    def should_giveup(error: Any) -> bool:
        if error.code() == StatusCode.RESOURCE_EXHAUSTED:
            return "larger than max" in str(error.details())
        if error.code() == StatusCode.UNAUTHENTICATED and not said.is_set():
            said.set()
            log.error("%s", refusal_reason(error))  # Flower ends the node for it without a word
        return error.code() != StatusCode.INTERNAL and bool(gives_up(error))

    invoker.should_giveup = should_giveup
    return invoker


def refusal_reason(error: Any) -> str:
    """Return what a call was refused for, in one line: its status, and Flower's code and words where it has them."""
    details = str(error.details())
    refusal = FlowerError.from_json(details)
    return f"{error.code().name}: " + (f"[code: {refusal.code}] {refusal.message}" if refusal else details[:500])


def end_without_heartbeat(failed: threading.ExceptHookArgs) -> None:
    """Say in one line why a thread of Flower's has ended, and end the node: without heartbeat it is taken for dead."""
    if not isinstance(failed.exc_value, RpcError):
        threading.__excepthook__(failed)
    elif failed.exc_value.code() != StatusCode.UNAUTHENTICATED:  # at which Flower ends the node itself
        log.error("the heartbeat was refused: %s", refusal_reason(failed.exc_value))
        leave(1)


class Remedies(logging.Handler):
    """Says, under Flower's own words, what would help."""

    SAID: Mapping[str, str] = {
        "[code: 2004]": "the SuperLink does not admit this key. Ask the federation's operator: it is not registered "
        "(fairbloom deploy enroll), or was revoked (enroll the client again), or a node with it is connected already: "
        "one that was killed counts as connected for a minute",
        "UNAUTHENTICATED": "the SuperLink refuses this node's signature: the key was revoked by the federation's "
        "operator, or this device's clock is more than 5 s ahead or 5 min behind (timedatectl)",
    }

    def emit(self, record: logging.LogRecord) -> None:
        """Print the remedy of a known fault."""
        message = record.getMessage()
        for sign, remedy in self.SAID.items():
            if sign in message:
                say(remedy)

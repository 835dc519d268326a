"""The connection of a client's node to its SuperLink: which process it is, and how soon it notices that it broke."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from fairbloom import __version__
from fairbloom.protocol.names import DROP_HEADER, VERSION_HEADER, WORK_HEADER

from ...device.instance import HEADER, INSTANCE
from ...device.work import Work
from ..retries import LONGEST_RETRY_SECONDS

OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", int(1000 * LONGEST_RETRY_SECONDS)),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
"""Pauses between attempts to connect, where gRPC's own grow to two minutes; how long an attempt may take that nobody
answers; and after how long without a word, during a call, a connection is probed and taken for broken."""


class Introduction(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Says, with the call by which a node connects, which version of Fairbloom it runs, and which instance it is."""

    def __init__(self, instance: str) -> None:
        self._headers = ((VERSION_HEADER, __version__), (HEADER, instance))

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        """Add the headers."""
        if details.method.endswith("/ActivateNode"):
            details = details._replace(metadata=[*(details.metadata or ()), *self._headers])
        return continuation(details, request)


class WorkReport(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Says with each heartbeat what the node works on, and drops it where the answer says so."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        """Add what is worked on; look at the answer."""
        name = self._work.name
        if not name or not details.method.endswith("/SendNodeHeartbeat"):
            return continuation(details, request)
        call = continuation(details._replace(metadata=[*(details.metadata or ()), (WORK_HEADER, name)]), request)
        for reason in (value for key, value in call.trailing_metadata() or () if key == DROP_HEADER):
            self._work.drop(name, str(reason))
        return call


def create_channel(
    server_address: str,
    insecure: bool,
    root_certificates: bytes | None = None,
    max_message_length: int = -1,
    interceptors: Sequence[Any] | None = None,
) -> grpc.Channel:
    """Return a channel as Flower's function of this name does, with OPTIONS and an Introduction."""
    limits = (
        ("grpc.max_send_message_length", max_message_length),
        ("grpc.max_receive_message_length", max_message_length),
    )
    if insecure:
        channel = grpc.insecure_channel(server_address, options=limits + OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(root_certificates)
        channel = grpc.secure_channel(server_address, credentials, options=limits + OPTIONS)
    return grpc.intercept_channel(channel, *(interceptors or ()), Introduction(os.environ.get(INSTANCE, "")))

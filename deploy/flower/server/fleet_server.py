"""The fleet API's server: a call's body is read once its head has shown a client's key, and both have bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from urllib.parse import unquote

import grpc
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.error import rpc_error_translator
from flwr.supercore.utils import get_metadata_bytes
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc import ServicerContext, StatusCode

from ...server.connections import Connections
from ...server.rate_limit import CallLimit, TooManyCallsError
from ...server.refusals import RefusalLog
from .fleet import LARGEST_CALL, GuardedFleet

CALLS_AT_ONCE = 1000
"""How many calls the server works on, of all clients together, as Flower's does."""

PENDING_CALLS = 500
"""How many calls may wait until the server looks at their heads; others are turned away."""

STREAMS = 100
"""How many calls a connection may have under way. Flower's clients make fewer than 20 at once."""

AHEAD_BYTES = 1 << 14
"""How much of a call's body is taken in before somebody asks for it, which happens once its key is known. Of a body
that is asked for, gRPC takes as much at once as it is long."""

SMALL_CALL = 1 << 16
"""Largest call, in bytes, that is no part of a reply."""

OPTIONS = (
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
    ("grpc.http2.bdp_probe", 0),  # which would take in more and more ahead of time
    ("grpc.per_message_decompression", 0),  # a compressed call of 16 MB may hold 16 GB; Flower compresses nothing
    ("grpc.server.max_pending_requests", PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 210_000),  # Flower's own: some networks forget silent connections after four minutes
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients look every 20 s whether the link is up
    ("grpc.so_reuseport", 0),  # another server on the same port is an error
)


class KeyCheck(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Refuses a call without reading its body if its head shows no registered key.

    gRPC's handlers of unary calls, which Flower has, read the whole body first.
    """

    def __init__(self, fleet: GuardedFleet, port: int, connections: Connections, refusals: RefusalLog) -> None:
        self._fleet, self._port, self._connections, self._refusals = fleet, port, connections, refusals
        self._small, self._large = CallLimit(), CallLimit()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return a handler that takes in a call's body when it asks for it."""
        call = details.method.rpartition("/")[2]

        def answer(bodies: Iterator[bytes], context: ServicerContext) -> bytes:
            handler = continuation(details)
            if handler is None:
                context.abort(StatusCode.UNIMPLEMENTED, "no such call")
            return cast(bytes, handler.response_serializer(self._answer(call, handler, bodies, context)))

        return grpc.stream_unary_rpc_method_handler(answer)

    def _answer(self, call: str, handler: Any, bodies: Iterator[bytes], context: ServicerContext) -> Any:
        if handler.request_deserializer is None:  # as has Flower's refusal of a head without a key, or badly signed
            self._refusals.note("a call of the fleet API without a key", peer=context.peer())
            return handler.unary_unary(None, context)
        key = get_metadata_bytes(context.invocation_metadata(), PUBLIC_KEY_HEADER) or b""
        with rpc_error_translator(context, call):  # as for what Flower's own handlers ask of the database
            node_id = self._fleet.node_of(key)
        if node_id is not None:
            self._connections.admit(self._port, *host_and_port(context.peer()), node_id)
            return self._serve(call, node_id, handler, bodies, context)
        if call == "ActivateNode":  # Flower says what a client must do that is not enrolled
            return handler.unary_unary(ActivateNodeRequest(public_key=key, heartbeat_interval=30.0), context)
        self._refusals.note("a call of the fleet API with an unregistered key", peer=context.peer())
        return context.abort(StatusCode.UNAUTHENTICATED, "Invalid node ID")  # Flower's words

    def _serve(self, call: str, node_id: int, handler: Any, bodies: Iterator[bytes], context: ServicerContext) -> Any:
        """Take in a registered node's call, when it is its connection's turn, and answer it."""
        try:
            if call in ("PushMessages", "PushObject"):  # a reply, or a part of one
                with self._large.slot(context.peer()):
                    return handler.unary_unary(_request(handler, bodies, LARGEST_CALL, context), context)
            with self._small.slot(context.peer()):  # a turn of its own: signs of life do not wait behind a slow reply
                request = _request(handler, bodies, SMALL_CALL, context)
            return handler.unary_unary(request, context)
        except TooManyCallsError:
            return self._fleet.turn_away(node_id, context)


def _request(handler: Any, bodies: Iterator[bytes], most: int, context: ServicerContext) -> Any:
    """Take in a call's body and return what it says; end the call where it says nothing, or is larger than `most`."""
    body = next(bodies, b"")
    if len(body) > most:
        context.abort(StatusCode.RESOURCE_EXHAUSTED, f"a call of {len(body)} bytes, and this one may have {most}")
    try:
        return handler.request_deserializer(body)
    except DecodeError:
        return context.abort(StatusCode.INVALID_ARGUMENT, "the call cannot be read")


def host_and_port(peer: str) -> tuple[str, int]:
    """Return the address and port of a peer as gRPC writes it: ipv4:192.0.2.7:4711, or ipv6:%5B2001:db8::7%5D:4711."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port)


def fleet_server(
    servicer_and_add_fn: tuple[GuardedFleet, Callable[[GuardedFleet, grpc.Server], None]],
    server_address: str,
    max_message_length: int,
    certificates: tuple[bytes, bytes, bytes],
    interceptors: Sequence[grpc.ServerInterceptor],
    *,
    connections: Connections,
    refusals: RefusalLog,
) -> grpc.Server:
    """Return a server of the fleet API in place of Flower's, with its arguments; RuntimeError if it cannot listen."""
    fleet, add_to = servicer_and_add_fn
    gate = KeyCheck(fleet, int(server_address.rpartition(":")[2]), connections, refusals)
    server = grpc.server(
        ThreadPoolExecutor(CALLS_AT_ONCE),
        interceptors=[gate, *interceptors],
        options=[
            *OPTIONS,
            ("grpc.max_send_message_length", max_message_length),
            ("grpc.max_receive_message_length", max_message_length),
            ("grpc.max_allowed_incoming_connections", connections.most),
        ],
        maximum_concurrent_rpcs=CALLS_AT_ONCE,
    )
    add_to(fleet, server)
    authority, certificate, key = certificates
    server.add_secure_port(server_address, grpc.ssl_server_credentials([(key, certificate)], authority))
    server.bound_address = server_address
    return server

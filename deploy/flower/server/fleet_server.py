"""The fleet's port: one pipeline through which every call of a client goes before it is answered.

First the head is read: the signature, and the client that has this key. Then the body is
taken in, in its turn and within bounds, and the call is made. Errors of Flower's become statuses of gRPC.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc import ServicerContext, StatusCode

from fairbloom.logs import log
from fairbloom.protocol.names import KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER

from ...server.connections import Connections
from ...server.members import Members
from ...server.rate_limit import UNDER_WAY_AT_ONCE, CallLimit, TooManyCallsError
from ...server.refusals import RefusalLog
from .run_state import RunState

CALLS_AT_ONCE = 2000
"""How many calls the server works on, of all clients together: those that are held, and 500 others."""

PENDING_CALLS = 500
"""How many calls may wait until the server looks at their heads; others are turned away."""

STREAMS = 100
"""How many calls a connection may have under way. Flower's clients make fewer than 20 at once."""

AHEAD_BYTES = 1 << 14
"""How much of a call's body is taken in before somebody asks for it, which happens once its key is known. Of a body
that is asked for, gRPC takes as much at once as it is long."""

LARGEST_CALL = 16 << 20
"""Largest call that is taken, in bytes. Flower sends arrays in parts of 5 MiB, and bundles, of 10 MB at most, whole."""

SMALL_CALL = 1 << 16
"""Largest call, in bytes, that is no part of a reply."""

OPTIONS = (
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
    ("grpc.http2.bdp_probe", 0),  # which would take in more and more ahead of time
    ("grpc.per_message_decompression", 0),  # a compressed call of 16 MB may hold 16 GB; Flower compresses nothing
    ("grpc.max_send_message_length", LARGEST_CALL),
    ("grpc.max_receive_message_length", LARGEST_CALL),
    ("grpc.server.max_pending_requests", PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 210_000),  # Flower's own: some networks forget silent connections after four minutes
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients look every 20 s whether the link is up
    ("grpc.so_reuseport", 0),  # another server on the same port is an error
)

SECONDS_EARLY, SECONDS_LATE = 5.0, 305.0
"""How far a client's clock may be ahead of ours, and how old a signature may be."""

REMEMBERED, LONGEST_SIGNED = 4096, 1000
"""How many signatures are remembered once they were checked, and how long key, time and signature may be together."""

STATUS: Mapping[int, tuple[StatusCode, str]] = {
    1005: (StatusCode.UNAVAILABLE, "The SuperLink's database is busy, or its disk is full."),
    2003: (StatusCode.INVALID_ARGUMENT, "Invalid heartbeat interval."),
    2004: (StatusCode.FAILED_PRECONDITION, "Failed to activate SuperNode."),
    2005: (StatusCode.FAILED_PRECONDITION, "Failed to deactivate SuperNode."),
    2007: (StatusCode.PERMISSION_DENIED, "The run's status does not allow this."),
    2008: (StatusCode.PERMISSION_DENIED, "Failed to get run."),
    2009: (StatusCode.PERMISSION_DENIED, "Failed to get FAB."),
}
"""Status and words that a client gets for an error of Flower's, by its code; other errors are faults of the server."""


class RefusedCallError(Exception):
    """A call that is refused, with the status and the words that its caller gets."""

    def __init__(self, status: StatusCode, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


@dataclass(frozen=True)
class Caller:
    """The registered node that makes a call, and what the call's head says by name."""

    node_id: int
    key: bytes
    head: Mapping[str, Any]
    context: ServicerContext

    @property
    def peer(self) -> str:
        """Its address, as gRPC writes it."""
        return str(self.context.peer())


@dataclass(frozen=True)
class Call:
    """A call that clients may make: the class of its body, of at most `largest` bytes, and who answers it.

    `wait` waits, with the first answer, until there may be another one, and returns whether there is.
    """

    request: Any
    answer: Callable[[Any, Caller], Any]
    largest: int = SMALL_CALL
    wait: Callable[[Any, Caller], bool] | None = None


class Pipeline(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Checks each call, makes it and answers it; `calls` has those that are answered, by their paths."""

    def __init__(
        self,
        calls: Mapping[str, Call],
        state: RunState,
        members: Members,
        port: int,
        connections: Connections,
        refusals: RefusalLog,
        turns: CallLimit,
    ) -> None:
        self._calls, self._state, self._members = calls, state, members
        self._port, self._connections, self._refusals = port, connections, refusals
        self._turns, self._logged = turns, dict[tuple[str, str], float]()

    def service(self, details: Any) -> Any:
        """Return a handler that takes in a call's body when it asks for it: gRPC's of unary calls take it in first."""
        return grpc.stream_unary_rpc_method_handler(
            partial(self._answer, details.method), response_serializer=lambda answer: answer.SerializeToString()
        )

    def _answer(self, path: str, bodies: Iterator[bytes], context: ServicerContext) -> Any:
        try:
            caller = self.identify(path, head_of(context), context)
            if path not in self._calls:
                raise RefusedCallError(StatusCode.UNIMPLEMENTED, "no such call")
            return self.serve(path, caller, bodies)
        except RefusedCallError as refusal:
            status, words = refusal.status, refusal.words
        except FlowerError as error:
            self._log(path, f"[code: {error.code}]", error.message)
            status, words = translate(error)
        except Exception as error:  # whatever it is: the client tries again
            if context.is_active():  # else it has hung up
                self._log(path, type(error).__name__, error)
            status, words = StatusCode.INTERNAL, "Internal server error."
        return context.abort(status, words)

    def _log(self, path: str, kind: str, words: object) -> None:
        """Log a call that failed, once a minute for each kind: who makes calls fail cannot fill the disk."""
        failed = (path if path in self._calls else "an unknown call", kind)
        if time.monotonic() - self._logged.get(failed, -math.inf) > 60.0:
            self._logged[failed] = time.monotonic()
            log.error("%s: %s %.300s", *failed, words)

    def identify(self, path: str, head: Mapping[str, Any], context: ServicerContext) -> Caller:
        """Return the registered node that has signed the head of a call."""
        key, peer = signed_key(head), context.peer()
        if not key:
            self._refusals.note("a call of the fleet API without a key", peer=peer)
            raise RefusedCallError(StatusCode.UNAUTHENTICATED, "Invalid signature, or the clock is wrong")
        node_id = self._state.get_node_id_by_public_key(key)
        if node_id is None and path.endswith("/ActivateNode"):
            self._refusals.note("an unregistered key", peer=peer)
            raise FlowerError(2004, "a node with an unregistered key")  # by which its client knows what to say
        if node_id is None:
            self._refusals.note("a call of the fleet API with an unregistered key", peer=peer)
            raise RefusedCallError(StatusCode.UNAUTHENTICATED, "Invalid node ID")
        self._connections.admit(self._port, *host_and_port(peer), node_id)
        return Caller(node_id, key, head, context)

    def serve(self, path: str, caller: Caller, bodies: Iterator[bytes]) -> Any:
        """Return the answer to a registered node's call; RefusedCallError or FlowerError where it is refused."""
        call = self._calls[path]
        turn = (caller.node_id, call.largest)  # by size: signs of life do not wait behind a slow reply
        try:
            with self._turns.slot(turn):
                request = read(call, bodies)
                self._check_named(request, caller)
                answer = call.answer(request, caller)
            if call.wait and call.wait(answer, caller):
                with self._turns.slot(turn):
                    answer = call.answer(request, caller)
            return answer
        except TooManyCallsError:
            note_refused(self._refusals, self._members, caller.node_id, f"more than {UNDER_WAY_AT_ONCE} calls at once")
            words = "too many calls of this node at once: try again"
            raise RefusedCallError(StatusCode.RESOURCE_EXHAUSTED, words) from None

    def _check_named(self, request: Any, caller: Caller) -> None:
        """Raise RefusedCallError where a call names another node, or another key, than its head."""
        if hasattr(request, "public_key"):
            if request.public_key != caller.key:
                self._refusals.note("a node in another one's name", peer=caller.peer)
                raise RefusedCallError(StatusCode.UNAUTHENTICATED, "a node comes by its own key alone")
        elif (request.node if hasattr(request, "node") else request).node_id != caller.node_id:
            note_refused(self._refusals, self._members, caller.node_id, "a call in another node's name")
            raise RefusedCallError(StatusCode.UNAUTHENTICATED, "Invalid node ID")


def note_refused(refusals: RefusalLog, members: Members, node_id: int, what: str) -> None:
    """Note what was refused of a node, by its client's name."""
    refusals.note(what, client=members.name_of(node_id))


def head_of(context: ServicerContext) -> Mapping[str, Any]:
    """Return what the head of a call says, by name; a name that it has twice says nothing."""
    pairs = [(name, value) for name, value in context.invocation_metadata()]
    times = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if times[name] == 1}


def signed_key(head: Mapping[str, Any]) -> bytes:
    """Return the public key with which the head of a call was signed just now, b"" where it was not."""
    key, at, signature = head.get(KEY_HEADER, b""), str(head.get(TIME_HEADER, "")), head.get(SIGNATURE_HEADER, b"")
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
        is_good = -SECONDS_EARLY < age < SECONDS_LATE and is_signed(key, at, signature)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):  # no time, no key, or one of another kind
        return b""
    return key if is_good else b""


@lru_cache(REMEMBERED)
def is_signed(key: bytes, text: str, signature: bytes) -> bool:
    """Return whether a text was signed by this key; clients send one signature with the calls of a minute."""
    return len(key) + len(text) + len(signature) < LONGEST_SIGNED and verify_signature(
        bytes_to_public_key(key), text.encode("ascii"), signature
    )


def read(call: Call, bodies: Iterator[bytes]) -> Any:
    """Take in a call's body and return what it says; RefusedCallError where that is nothing, or too much."""
    body = next(bodies, b"")
    if len(body) > call.largest:
        words = f"a call of {len(body)} bytes, and this one may have {call.largest}"
        raise RefusedCallError(StatusCode.RESOURCE_EXHAUSTED, words)
    try:
        return call.request.FromString(body)
    except DecodeError:
        raise RefusedCallError(StatusCode.INVALID_ARGUMENT, "the call cannot be read") from None


def translate(error: FlowerError) -> tuple[StatusCode, str]:
    """Return the status of an error of Flower's, and the words as Flower's clients read them."""
    status, words = STATUS.get(error.code, (StatusCode.INTERNAL, "Internal server error."))
    return status, json.dumps({"code": error.code, "public_message": words, "public_details": error.public_details})


def host_and_port(peer: str) -> tuple[str, int]:
    """Return the address and port of a peer as gRPC writes it: ipv4:192.0.2.7:4711, or ipv6:%5B2001:db8::7%5D:4711."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port)


def fleet_server(
    pipeline: Pipeline, address: str, certificates: tuple[bytes, bytes, bytes], most_connections: int
) -> grpc.Server:
    """Return a server, with the authority's certificate, its own and its key; RuntimeError if it cannot listen."""
    server = grpc.server(
        ThreadPoolExecutor(CALLS_AT_ONCE),
        handlers=[pipeline],
        options=[*OPTIONS, ("grpc.max_allowed_incoming_connections", most_connections)],
        maximum_concurrent_rpcs=CALLS_AT_ONCE,
    )
    authority, certificate, key = certificates
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)], authority))
    return server

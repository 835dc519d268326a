"""A node's calls to its SuperLink: Flower's Fleet service over gRPC, signed by the node's key, again after faults."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, run_pb2
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from grpc import RpcError, StatusCode

from fairbloom import __version__
from fairbloom.protocol.names import (
    KEY_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    VERSION_HEADER,
    WIRE_HEADER,
    WORK_HEADER,
)
from fairbloom.protocol.version import WIRE

from ...device.instance import HEADER
from ...device.outage import Outage
from .. import exchange_pb2
from ..retries import LONGEST_RETRY_SECONDS
from ..whole import identifiers, pack_parts, room_for

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", int(1000 * LONGEST_RETRY_SECONDS)),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
"""Pauses between attempts to connect, where gRPC's own grow to two minutes; how long an attempt may take that nobody
answers; and after how long without a word, during a call, a connection is probed and taken for broken."""

HEARTBEAT_SECONDS, ANSWER_SECONDS = 30.0, 5.0
"""A node that says nothing for twice so long counts as dead; and how long a heartbeat may wait for its answer."""

BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, MOST_LOOKS = 0.05, 10.0, 100
"""First and longest wait for a part that is announced and not there yet, and how often it is looked for."""

SIGNATURE_AGE = timedelta(minutes=1)
"""How long a signature goes with each call: the SuperLink checks it once, and takes it for five minutes."""

CALLS_AT_ONCE = 4
"""How many parts of a reply are sent at the same time."""

AWAY = "the SuperLink does not answer, or has a fault of its own"
"""What a client says, once, while it tries to reach the SuperLink."""

MAY_PASS = (
    *(StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL),
    *(StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED),
)
"""Away, going away, a fault of its own (a locked database, a full disk), too many calls at once, no answer in time."""


EXCHANGE, FLEET = "fairbloom.exchange.v1.Exchange", "flwr.proto.Fleet"

ANSWERS: Mapping[str, tuple[str, Any]] = {
    "Next": (EXCHANGE, exchange_pb2.NextResponse),
    "Reply": (EXCHANGE, exchange_pb2.ReplyResponse),
    "RegisterNode": (FLEET, fleet_pb2.RegisterNodeFleetResponse),
    "UnregisterNode": (FLEET, fleet_pb2.UnregisterNodeFleetResponse),
    "ActivateNode": (FLEET, fleet_pb2.ActivateNodeResponse),
    "DeactivateNode": (FLEET, fleet_pb2.DeactivateNodeResponse),
    "SendNodeHeartbeat": (FLEET, heartbeat_pb2.SendNodeHeartbeatResponse),
    "PullMessages": (FLEET, fleet_pb2.PullMessagesResponse),
    "PullObject": (FLEET, message_pb2.PullObjectResponse),
    "ConfirmMessageReceived": (FLEET, message_pb2.ConfirmMessageReceivedResponse),
    "GetRun": (FLEET, run_pb2.GetRunResponse),
    "GetFab": (FLEET, fab_pb2.GetFabResponse),
    "PushMessages": (FLEET, fleet_pb2.PushMessagesResponse),
    "PushObject": (FLEET, message_pb2.PushObjectResponse),
}
"""The service of each call, and what is answered."""


class RefusedError(Exception):
    """A call that the SuperLink refused, in one line."""


class UnknownNodeError(RefusedError):
    """The SuperLink does not know this node, or not any longer."""


class UnimplementedError(RefusedError):
    """A call that the SuperLink does not know: it is an older one, or Flower's own."""


class PartMissingError(Exception):
    """A part of a message that is not there, or does not come."""


class RunOverError(Exception):
    """A call for a run that is over."""


class ClosedError(Exception):
    """The connection was closed by another thread."""


class Fleet:
    """A node's connection to its SuperLink.

    Without `ca`, the authority's certificate, there is no TLS; without `key` the SuperLink registers a new one unasked.
    `instance` tells this process from another one with the same key.
    """

    def __init__(self, address: str, ca: str, key: str, instance: str, outage: Outage) -> None:
        if ca:
            safety = grpc.ssl_channel_credentials(Path(ca).read_bytes())
            self._channel = grpc.secure_channel(address, safety, options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._outage, self._registers = outage, not key
        self._whole = True  # until the SuperLink says that it does not know messages that travel whole
        self._key = _load_key(key) if key else generate_key_pairs()[0]
        self._public = public_key_to_bytes(self._key.public_key())
        self._signed: tuple[datetime, tuple[tuple[str, str | bytes], ...]] = datetime.min.replace(tzinfo=UTC), ()
        self._introduction = ((VERSION_HEADER, __version__), (WIRE_HEADER, str(WIRE)), (HEADER, instance))
        self._closed = threading.Event()
        self.node = node_pb2.Node()

    # The node -------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Make this node known; raise RefusedError where the SuperLink does not admit it."""
        if self._registers:
            self._call("RegisterNode", fleet_pb2.RegisterNodeFleetRequest(public_key=self._public))
        request = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_SECONDS)
        answer, _ = self._call("ActivateNode", request, self._introduction)
        self.node = node_pb2.Node(node_id=answer.node_id)
        self._outage.end()

    def beat(self, working: str) -> Mapping[str, str]:
        """Give a sign of life, with what is worked on; return the headers of the answer."""
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_SECONDS)
        headers = ((WORK_HEADER, working),) if working else ()
        answer, trailing = self._call("SendNodeHeartbeat", request, headers, ANSWER_SECONDS)
        if not answer.success:
            raise UnknownNodeError("the SuperLink does not know this node any longer")
        return trailing

    def disconnect(self) -> None:
        """Take leave, if the SuperLink answers soon."""
        if not self._closed.is_set() and self.node.node_id:
            leave = [("DeactivateNode", fleet_pb2.DeactivateNodeRequest(node_id=self.node.node_id))]
            if self._registers:
                leave.append(("UnregisterNode", fleet_pb2.UnregisterNodeFleetRequest(node_id=self.node.node_id)))
            try:
                for method, request in leave:
                    self._function(method)(request, timeout=ANSWER_SECONDS, metadata=self._signature())
            except RpcError:
                pass
        self.close()

    def close(self) -> None:
        """End the connection; what other threads have under way ends by a ClosedError."""
        self._closed.set()
        self._channel.close()

    def wait(self, seconds: float) -> bool:
        """Wait; return whether the connection was closed meanwhile."""
        return self._closed.wait(seconds)

    # Messages -------------------------------------------------------------------------------------------------------

    def pull(self) -> tuple[message_pb2.Message, message_pb2.ObjectTree, dict[str, bytes]] | None:
        """Return head and tree of a message, and its parts if they came along; None where there is none."""
        while self._whole:
            try:
                whole, _ = self._call("Next", exchange_pb2.NextRequest(node_id=self.node.node_id))
            except UnimplementedError:
                self._whole = False
            else:
                if not whole.head:
                    return None
                tree = message_pb2.ObjectTree.FromString(whole.tree)
                return message_pb2.Message.FromString(whole.head), tree, {part.id: part.content for part in whole.parts}
        answer, _ = self._call("PullMessages", fleet_pb2.PullMessagesRequest(node=self.node))
        return (answer.messages_list[0], answer.message_object_trees[0], {}) if answer.messages_list else None

    def get_run(self, run_id: int) -> run_pb2.Run:
        """Return what is known of a run; raise RunOverError where it is over."""
        run: run_pb2.Run = self._call("GetRun", run_pb2.GetRunRequest(node=self.node, run_id=run_id))[0].run
        return run

    def get_bundle(self, run: run_pb2.Run) -> bytes:
        """Return a run's bundle."""
        request = fab_pb2.GetFabRequest(node=self.node, hash_str=run.fab_hash, run_id=run.run_id)
        return bytes(self._call("GetFab", request)[0].fab.content)

    def receive(self, run_id: int, message_id: str, tree: message_pb2.ObjectTree) -> dict[str, bytes]:
        """Return the parts of a message that came without them, once all are here, and say so."""

        def pull_part(name: str) -> bytes:
            request, pause = (
                message_pb2.PullObjectRequest(node=self.node, run_id=run_id, object_id=name),
                BACKOFF_SECONDS,
            )
            for _ in range(MOST_LOOKS):
                answer, _ = self._call("PullObject", request)
                if not answer.object_found:
                    raise PartMissingError(f"{name}: the SuperLink does not have it")
                if answer.object_available:
                    return bytes(answer.object_content)
                self._closed.wait(pause)
                pause = min(2 * pause, LONGEST_BACKOFF_SECONDS)
            raise PartMissingError(f"{name}: it does not come")

        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            names = [*dict.fromkeys(identifiers(tree))]
            parts = dict(zip(names, pool.map(pull_part, names), strict=True))
        request = message_pb2.ConfirmMessageReceivedRequest(node=self.node, run_id=run_id, message_object_id=message_id)
        self._call("ConfirmMessageReceived", request)
        return parts

    def push(self, head: bytes, tree: bytes, parts: Mapping[str, bytes], seconds: float) -> int:
        """Send a reply that took so long; return how many of its parts the SuperLink has not stored.

        It has these already, where only a receipt was lost, or refuses them.
        """
        session, wanted = self._push_head(head, tree, parts, seconds)
        run_id = message_pb2.Message.FromString(head).metadata.run_id

        def push_part(name: str) -> bool:
            part = message_pb2.PushObjectRequest(
                node=self.node, run_id=run_id, object_id=name, object_content=parts[name], session_id=session
            )
            return bool(self._call("PushObject", part)[0].stored)

        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            stored = list(pool.map(push_part, [name for name in parts if name in wanted]))
        return stored.count(False)

    def _push_head(self, head: bytes, tree: bytes, parts: Mapping[str, bytes], seconds: float) -> tuple[str, set[str]]:
        """Send a reply, or as much of it as a call may have; return the session of the rest, and the rest."""
        if self._whole:
            some = pack_parts(parts, room_for(parts, len(tree)))
            reply = exchange_pb2.ReplyRequest(
                node_id=self.node.node_id, head=head, tree=tree, parts=some, seconds=seconds
            )
            try:
                answer, _ = self._call("Reply", reply)
            except UnimplementedError:
                self._whole = False
            else:
                return answer.session_id, set(answer.wanted)
        request = fleet_pb2.PushMessagesRequest(
            node=self.node,
            messages_list=[message_pb2.Message.FromString(head)],
            message_object_trees=[message_pb2.ObjectTree.FromString(tree)],
            clientapp_runtime_list=[seconds],
        )
        answer, _ = self._call("PushMessages", request)
        return answer.session_id, set(answer.objects_to_push)

    # Calls ----------------------------------------------------------------------------------------------------------

    def _call(
        self, method: str, request: Any, headers: Iterable[tuple[str, str]] = (), seconds: float | None = None
    ) -> tuple[Any, Mapping[str, str]]:
        """Make a call, again and again while a fault may pass; return the answer and its headers."""
        call: Callable[..., Any] = self._function(method).with_call
        pause, failed = 1.0, False
        while not self._closed.is_set():
            try:
                answer, about = call(request, timeout=seconds, metadata=(*self._signature(), *headers))
            except RpcError as error:
                if self._closed.is_set():
                    break
                if (refusal := refusal_of(error)) is not None:
                    raise refusal from None
                if error.code() != StatusCode.DEADLINE_EXCEEDED:
                    failed = True
                    self._outage.fault(AWAY)
                    self._whole = True  # it may come back as a newer one
                if method == "Next":
                    request.again = True
            except ValueError:  # gRPC's, of a channel that is closed
                break
            else:
                if failed:
                    self._outage.end()
                return answer, dict(about.trailing_metadata() or ())
            self._closed.wait(random.uniform(0.0, pause))  # noqa: S311 (no secret)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)
        raise ClosedError

    def _function(self, method: str) -> Any:
        """Return the function that makes a call."""
        path, answer = ANSWERS[method]
        return self._channel.unary_unary(
            f"/{path}/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def _signature(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the headers by which the SuperLink knows that a call is this node's, signed in the last minute."""
        now = datetime.now(UTC)
        signed_at, headers = self._signed
        if not timedelta(0) <= now - signed_at < SIGNATURE_AGE:
            text = now.isoformat()
            signature = sign_message(self._key, text.encode("ascii"))
            headers = ((KEY_HEADER, self._public), (TIME_HEADER, text), (SIGNATURE_HEADER, signature))
            self._signed = now, headers
        return headers


def _load_key(path: str) -> ec.EllipticCurvePrivateKey:
    key: Any = load_ssh_private_key(Path(path).read_bytes(), None)  # the start of the client has checked its kind
    return cast(ec.EllipticCurvePrivateKey, key)


def refusal_of(error: Any) -> Exception | None:
    """Return what a failed call means, None where the fault may pass.

    What is too large for one message is RESOURCE_EXHAUSTED as well, and stays too large.
    """
    code, details = error.code(), str(error.details())
    if code == StatusCode.PERMISSION_DENIED:
        return RunOverError()
    broken = "handshake failed" in details.lower() or "larger than max" in details
    if code in MAY_PASS and not broken:
        return None
    refused = FlowerError.from_json(details)
    words = f"{code.name}: " + (f"[code: {refused.code}] {refused.message}" if refused else details[:500])
    kinds = {StatusCode.UNAUTHENTICATED: UnknownNodeError, StatusCode.UNIMPLEMENTED: UnimplementedError}
    return kinds.get(code, RefusedError)(words)

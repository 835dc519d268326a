"""A node that speaks the fleet's protocol by itself, with an enrolled key, another's, or none."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message, MessageType, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fairbloom.deploy.flower import exchange_pb2
from fairbloom.deploy.operator.federation import Federation

from .federation import Deployment


def signed_head(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    """Return what shows a node's key in the head of a call."""
    at = datetime.now(UTC).isoformat()
    return {
        "flwr-public-key-bin": public_key_to_bytes(key.public_key()),
        "flwr-timestamp": at,
        "flwr-signature-bin": sign_message(key, at.encode()),
    }


class Signature(grpc.UnaryUnaryClientInterceptor):
    """Signs the head of each call."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        head = [*(details.metadata or ()), *signed_head(self._key).items()]
        return continuation(details._replace(metadata=head), request)


class Whole:
    """The fleet API, by calls whose messages travel whole where there are such."""

    def __init__(self, channel: grpc.Channel, stub: Any) -> None:
        self._stub = stub
        self._next, self._reply = (
            channel.unary_unary(
                f"/fairbloom.exchange.v1.Exchange/{name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            for name, answer in (("Next", exchange_pb2.NextResponse), ("Reply", exchange_pb2.ReplyResponse))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def PullMessages(self, request: PullMessagesRequest, timeout: float | None = None) -> Any:  # noqa: N802
        return self._next(exchange_pb2.NextRequest(node_id=request.node.node_id), timeout=timeout)

    def PushMessages(  # noqa: N802
        self,
        request: PushMessagesRequest,
        timeout: float | None = None,
        parts: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Any:
        reply = exchange_pb2.ReplyRequest(
            node_id=request.node.node_id,
            head=request.messages_list[0].SerializeToString(),
            tree=request.message_object_trees[0].SerializeToString(),
            parts=[exchange_pb2.Part(id=name, content=content) for name, content in parts.items()],
            seconds=sum(request.clientapp_runtime_list),
        )
        answer = self._reply(reply, timeout=timeout)
        return PushMessagesResponse(objects_to_push=answer.wanted, session_id=answer.session_id)


class Peer:
    """A node's side of the fleet API, call by call; `whole`: messages travel whole."""

    def __init__(
        self, there: Deployment, key: ec.EllipticCurvePrivateKey, node_id: int, *, whole: bool = False
    ) -> None:
        credentials = grpc.ssl_channel_credentials((there.folder / "ca.crt").read_bytes())
        channel = grpc.secure_channel(f"localhost:{there.fleet}", credentials)
        signed = grpc.intercept_channel(channel, Signature(key))
        self.stub: Any = Whole(signed, FleetStub(signed)) if whole else FleetStub(signed)
        self.key, self.node = key, Node(node_id=node_id)

    def activate(self) -> int:
        request = ActivateNodeRequest(public_key=public_key_to_bytes(self.key.public_key()), heartbeat_interval=30.0)
        return int(self.stub.ActivateNode(request).node_id)


def enrolled(there: Deployment, name: str, *, whole: bool = False) -> Peer:
    key = load_ssh_private_key((there.bundle(name) / "key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Peer(there, key, int(Federation(there.folder).find_client(name).node_id), whole=whole)


def message_of(source: int, run_id: int = 1, answered: str = "0" * 64) -> Message:
    asked = Message(RecordDict(), dst_node_id=source, message_type=MessageType.TRAIN)
    asked.metadata.__dict__["_message_id"] = answered
    reply = Message(RecordDict(), reply_to=asked)
    reply.metadata.__dict__["_src_node_id"] = source
    reply.metadata.__dict__["_run_id"] = run_id
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def pushed(peer: Peer, reply: Message, tree: ObjectTree | None = None, seconds: float = 1.0) -> PushMessagesRequest:
    return PushMessagesRequest(
        node=peer.node,
        messages_list=[message_to_proto(reply)],
        message_object_trees=[get_object_tree(reply) if tree is None else tree],
        clientapp_runtime_list=[seconds],
    )


def flooded(peer: Peer, run_id: int) -> list[tuple[Any, Any]]:
    """Calls that cost the server something and lead to nothing."""
    part = PushObjectRequest(node=peer.node, run_id=run_id, object_content=bytes(8_000_000))
    reply, push = message_of(peer.node.node_id, run_id), peer.stub.PushMessages
    if isinstance(peer.stub, Whole):
        push = partial(push, parts={reply.object_id: part.object_content})
    return [
        (push, pushed(peer, reply)),
        (peer.stub.PullMessages, PullMessagesRequest(node=peer.node)),
        (peer.stub.PushObject, part),
    ]

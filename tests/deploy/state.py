"""A SuperLink's state in a database, without its processes: runs, nodes, and messages as Flower sends them."""

import sqlite3
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory, linkstate_factory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.object_store import object_store_factory as stores
from flwr.superlink.federation import NoOpFederationManager

from fairbloom.deploy.flower import exchange_pb2
from fairbloom.deploy.flower.server import fleet_server
from fairbloom.deploy.flower.server.fleet import Fleet
from fairbloom.deploy.flower.server.fleet_server import Caller, Pipeline, RefusedCallError
from fairbloom.deploy.flower.server.run_state import RunState, RunStore
from fairbloom.deploy.server.connections import Connections
from fairbloom.deploy.server.long_poll import LongPoll
from fairbloom.deploy.server.rate_limit import CallLimit
from fairbloom.deploy.server.refusals import RefusalLog


class AbortedError(Exception):
    """What a call was ended with."""


class Call:
    """A stand-in for gRPC's context of a call, whose key is that of the node which is named, if it is not given."""

    def __init__(self, key: bytes = b"", instance: str = "", *head: tuple[str, str]) -> None:
        self.key, self.head = key, ((("fairbloom-instance", instance),) if instance else ()) + head
        self.trailing: tuple[Any, ...] = ()
        self._at_end: list[Callable[[], None]] = []
        self._ended = False

    def is_active(self) -> bool:
        return not self._ended

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._at_end.append(callback)
        return True

    def end(self) -> None:
        """Break the connection."""
        self._ended = True
        for callback in self._at_end:
            callback()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.head

    def set_trailing_metadata(self, metadata: tuple[Any, ...]) -> None:
        self.trailing = metadata

    def peer(self) -> str:
        return "ipv4:192.0.2.7:4711"


class Port:
    """The calls of the fleet's port, without gRPC and signatures: `port.PullMessages(request, Call())`.

    `whole` makes them by the service of messages that travel whole, where that has a call of the same kind.
    """

    def __init__(
        self, link: "SuperLinkState", folder: Path, members: Any, long_poll: LongPoll, *, whole: bool = False
    ) -> None:
        self.again = False
        self._state, self.whole, refusals = link.state, whole, RefusalLog()
        self.overdue = dict[int, str]()
        self.calls = Fleet(link.state, members=members, refusals=refusals, long_poll=long_poll, overdue=self.overdue)
        given = (members, 9092, Connections({}, 1000, refusals), refusals, CallLimit())
        self.pipeline = Pipeline(self.calls.calls(), link.state, *given)

    def PullMessages(self, request: PullMessagesRequest, call: Call) -> PullMessagesResponse:  # noqa: N802
        if not self.whole:
            return self._make("/flwr.proto.Fleet/PullMessages", request, call)
        answer = self.Next(exchange_pb2.NextRequest(node_id=request.node.node_id, again=self.again), call)
        return PullMessagesResponse(
            messages_list=[ProtoMessage.FromString(answer.head)] if answer.head else [],
            message_object_trees=[ObjectTree.FromString(answer.tree)] if answer.head else [],
        )

    def PushMessages(  # noqa: N802
        self, request: PushMessagesRequest, call: Call, given: Mapping[str, bytes] = MappingProxyType({})
    ) -> PushMessagesResponse:
        """Push a head, and with it these parts where the service has them."""
        if not self.whole or len(request.messages_list) != 1:
            return self._make("/flwr.proto.Fleet/PushMessages", request, call)
        reply = exchange_pb2.ReplyRequest(
            node_id=request.node.node_id,
            head=request.messages_list[0].SerializeToString(),
            tree=request.message_object_trees[0].SerializeToString(),
            parts=[exchange_pb2.Part(id=name, content=content) for name, content in given.items()],
        )
        answer = self.Reply(reply, call)
        return PushMessagesResponse(objects_to_push=answer.wanted, session_id=answer.session_id)

    def __getattr__(self, name: str) -> Callable[[Any, Call], Any]:
        service = "fairbloom.exchange.v1.Exchange" if name in ("Next", "Reply") else "flwr.proto.Fleet"
        return partial(self._make, f"/{service}/{name}")

    def _make(self, path: str, request: Any, call: Call) -> Any:
        try:
            return self.pipeline.serve(path, self._caller(path, request, call), iter([request.SerializeToString()]))
        except RefusedCallError as refusal:
            raise AbortedError(f"{refusal.status.name}: {refusal.words}") from None

    def _caller(self, path: str, request: Any, call: Call) -> Caller:
        context: Any = call
        if key := call.key:
            with patch.object(fleet_server, "signed_key", return_value=key):
                return self.pipeline.identify(path, fleet_server.head_of(context), context)
        node_id = request.node.node_id if hasattr(request, "node") else request.node_id
        return Caller(node_id, b"", fleet_server.head_of(context), context)


@cache
def empty_database() -> bytes:
    """Return a SuperLink's database without runs, which takes Flower a second or two to make."""
    with TemporaryDirectory() as folder:
        database = Path(folder, "superlink.db")
        made_by(factories_of(database)[1])
        with closing(sqlite3.connect(database)) as made:
            made.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return database.read_bytes()


def factories_of(database: Path) -> tuple[ObjectStoreFactory, LinkStateFactory]:
    objects = ObjectStoreFactory(str(database))
    return objects, LinkStateFactory(str(database), NoOpFederationManager(), objects)


def made_by(factory: LinkStateFactory) -> Any:
    """Return the state of a SuperLink that runs our classes."""
    ours = patch.multiple(linkstate_factory, SqlLinkState=RunState), patch.multiple(stores, SqlObjectStore=RunStore)
    # Alembic warns when the database is made.
    with ours[0], ours[1], warnings.catch_warnings(action="ignore"):
        return factory.state()


class SuperLinkState:
    """What a SuperLink knows, and a ServerApp's and a node's way to it.

    A second one on the same file is the SuperLink after a restart.
    """

    def __init__(self, database: Path) -> None:
        if not database.exists():
            database.write_bytes(empty_database())
        self.objects, self.factory = factories_of(database)
        self.state: Any = made_by(self.factory)

    def node(self, key: bytes) -> int:
        node: int = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 30)
        assert self.state.activate_node(node, 30)
        return node

    def submit(self) -> tuple[int, int]:
        return submit(self.state)

    def run(self) -> int:
        """Return the id of a run whose process has begun."""
        run, task = self.submit()
        assert self.state.claim_task(task)
        assert self.state.activate_task(task)
        return run

    def send(self, run: int, node: int, arrays: int = 1, size: int = 100) -> Message:
        """Send a message with all its parts, as a ServerApp does."""
        sent = Message(content(arrays, size), dst_node_id=node, message_type="train")
        sent.metadata.__dict__["_run_id"] = run
        sent.metadata.__dict__["_src_node_id"] = 1
        sent.metadata.__dict__["_message_id"] = sent.object_id
        session = self.state.start_session(run)
        stored, missing = self.state.store_message_and_object_tree(sent, get_object_tree(sent), session)
        assert stored
        parts = get_all_nested_objects(sent)
        for part in missing:
            assert self.state.store_object(run, session, part, parts[part].deflate())
        return sent

    def answers(self, message: Message) -> list[Message]:
        """Return what the run gets in answer, as its ServerApp asks for it."""
        found: list[Message] = self.state.get_message_res({message.metadata.message_id}, message.metadata.run_id)
        return found

    def count(self, table: str) -> int:
        (row,) = self.state.query(f"SELECT count(*) AS number FROM {table}")  # noqa: S608
        return int(row["number"])


def submit(state: Any) -> tuple[int, int]:
    """Return the ids of a new run and its task."""
    hashed = state.store_fab(Fab("", b"a bundle", {}))
    run = state.create_run("a/b", "1.0.0", hashed, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
    (about,) = state.get_run_info(run_ids=[run])
    return run, about.primary_task_id


def content(arrays: int, size: int, seed: int = 0) -> RecordDict:
    """Return a record of arrays, each of `size` bytes of numbers, no two alike."""
    rng = np.random.default_rng((seed, arrays, size))
    made = {f"{i}": Array(rng.integers(0, 256, size, dtype=np.uint8)) for i in range(arrays)}
    return RecordDict({"arrays": ArrayRecord(made)})


def reply_to(message: Message, arrays: int = 1, size: int = 100, seed: int = 1) -> Message:
    received = Message(RecordDict(), dst_node_id=message.metadata.dst_node_id, message_type="train")
    for name in ("_run_id", "_message_id", "_src_node_id", "_group_id", "_created_at", "_ttl"):
        received.metadata.__dict__[name] = message.metadata.__dict__[name]
    reply = Message(content(arrays, size, seed), reply_to=received)
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def head(reply: Message, node: int | None = None, tree: Any = None) -> PushMessagesRequest:
    return PushMessagesRequest(
        node=Node(node_id=reply.metadata.src_node_id if node is None else node),
        messages_list=[message_to_proto(remove_content_from_message(reply))],
        message_object_trees=[tree or get_object_tree(reply)],
    )


def part(reply: Message, session: str, object_id: str, content: bytes, node: int | None = None) -> PushObjectRequest:
    return PushObjectRequest(
        node=Node(node_id=reply.metadata.src_node_id if node is None else node),
        run_id=reply.metadata.run_id,
        object_id=object_id,
        object_content=content,
        session_id=session,
    )


def parts(reply: Message) -> dict[str, bytes]:
    return {object_id: found.deflate() for object_id, found in get_all_nested_objects(reply).items()}


def pull(node: int) -> PullMessagesRequest:
    return PullMessagesRequest(node=Node(node_id=node))


def confirm(message: Message) -> ConfirmMessageReceivedRequest:
    metadata = message.metadata
    return ConfirmMessageReceivedRequest(
        node=Node(node_id=metadata.dst_node_id), run_id=metadata.run_id, message_object_id=metadata.message_id
    )

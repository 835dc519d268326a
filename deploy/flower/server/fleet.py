"""What a node may cost the SuperLink: Flower's fleet API within limits."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from flwr.app import Error, Metadata
from flwr.app.message import make_message
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.error import FlowerError
from flwr.superlink.servicer.fleet import fleet_handlers
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc import StatusCode

from fairbloom.flower import ErrorCode, set_message_id
from fairbloom.protocol.names import DROP_HEADER, VERSION_HEADER, WIRE_HEADER, WORK_HEADER
from fairbloom.protocol.version import WIRE

from ...device.instance import HEADER
from ...server.long_poll import LongPoll
from ...server.members import Members
from ...server.refusals import RefusalLog
from .. import exchange_pb2
from ..whole import LARGEST_PARTS, PART_BYTES, identifiers, pack_parts
from . import tables
from .fleet_server import LARGEST_CALL, Call, Caller, RefusedCallError, note_refused
from .run_state import RunState
from .tables import MAX_DELIVERIES, signed, unsigned

TIMES, SLACK_BYTES, SLACK_OBJECTS = 2, 4 << 20, 1000
"""A reply may be TIMES as large as the message it answers, because DRFA's clients reply two models, and larger still by
the slack, for metrics; the same holds for its objects, which are records, arrays, and parts of arrays."""

LARGEST_HEAD = 1 << 20
"""Largest head of a reply, in bytes. A head has ids and times, or an error's words; the content comes in parts."""

MOST_SECONDS = 1e10
"""Largest time of a reply. A run adds up what its apps took; a time that is no number is none in the database, and the
run could not read its replies any longer."""

REPLY_TOO_LARGE = 413
"""Code of the error that takes the place of a refused reply; Flower's own codes are below 100."""

SUPERLINK = 1
"""Number of the SuperLink among the nodes: replies go there."""

VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,40}")
"""What a node may say of its version."""

BEATS_MISSED, INTERVALS = 2, (10.0, 1800.0)
"""After how many intervals without a heartbeat a node counts as gone, and the shortest and the longest interval, in
seconds: Flower's."""

RUN_OVER, TIME_OVER = "the run is over", "its time is over"
"""Why a node drops its work."""


class Fleet:
    """Flower's fleet API, within limits; its calls come through the pipeline of `fleet_server`.

    A reply may be as large as the message it answers allows. A larger one is refused before its parts are stored; an
    error with the reason takes its place, so that the round goes on and names the client.
    """

    def __init__(
        self, state: RunState, *, members: Members, refusals: RefusalLog, long_poll: LongPoll, overdue: dict[int, str]
    ) -> None:
        self._state, self._members, self._refusals = state, members, refusals
        self._long_poll, self._overdue = long_poll, overdue
        # By node, the message that it received last, and how often.
        self._received: dict[int, tuple[str, int]] = {}

    def calls(self) -> Mapping[str, Call]:
        """Return the calls that nodes may make; they are registered by the operator alone."""
        calls = {
            "ActivateNode": Call(fleet_pb2.ActivateNodeRequest, self.activate),
            "DeactivateNode": Call(fleet_pb2.DeactivateNodeRequest, self.deactivate),
            "SendNodeHeartbeat": Call(heartbeat_pb2.SendNodeHeartbeatRequest, self.take_heartbeat),
            "PullMessages": Call(fleet_pb2.PullMessagesRequest, self.hand_out, wait=self.wait_for_message),
            "PullObject": Call(message_pb2.PullObjectRequest, self.hand_out_part),
            "ConfirmMessageReceived": Call(message_pb2.ConfirmMessageReceivedRequest, self.note_received),
            "GetRun": Call(run_pb2.GetRunRequest, self.describe_run),
            "GetFab": Call(fab_pb2.GetFabRequest, self.hand_out_bundle),
            "PushMessages": Call(fleet_pb2.PushMessagesRequest, self.take_head, LARGEST_CALL),
            "PushObject": Call(message_pb2.PushObjectRequest, self.take_part, LARGEST_CALL),
        }
        whole = {
            "Next": Call(exchange_pb2.NextRequest, self.hand_out_whole, wait=self.wait_for_message),
            "Reply": Call(exchange_pb2.ReplyRequest, self.take_whole, LARGEST_CALL),
        }
        return {f"/flwr.proto.Fleet/{name}": call for name, call in calls.items()} | {
            f"/fairbloom.exchange.v1.Exchange/{name}": call for name, call in whole.items()
        }

    # Who may come ---------------------------------------------------------------------------------------------------

    def activate(self, request: Any, caller: Caller) -> Any:
        """Let a node in that speaks our wire format."""
        said = str(caller.head.get(VERSION_HEADER, ""))
        version = said if VERSION.fullmatch(said) else ""
        self._check_wire(str(caller.head.get(WIRE_HEADER, 1)), version, caller)  # the first devices do not say it
        with self._state.session():  # all or nothing: nobody sees the node offline in between
            self._relieve(caller)
            response = fleet_handlers.activate_node(request, self._state)
        self._state.note_version(caller.node_id, version)
        for statement in tables.FORGET:
            self._state.query(statement)
        return response

    def _check_wire(self, theirs: str, version: str, caller: Caller) -> None:
        """Raise RefusedCallError where a node speaks another wire format than this server."""
        if theirs == str(WIRE):
            return
        older = theirs.isdecimal() and int(theirs[:9]) < WIRE
        remedy = "upgrade fairbloom on this device" if older else "upgrade the server first, or go back on this device"
        name = self._members.name_of(caller.node_id)
        self._note_refused(caller.node_id, f"a device with another wire format, of fairbloom {version or 'unknown'}")
        words = f"device {name} speaks wire format {theirs:.20}, and the server {WIRE}: {remedy}"
        raise RefusedCallError(StatusCode.FAILED_PRECONDITION, words)

    def _relieve(self, caller: Caller) -> None:
        """Let a node's new process replace the one before, which has ended if it was the same instance.

        Flower counts it as connected for another minute.
        """
        instance = str(caller.head.get(HEADER, ""))
        if not 0 < len(instance) <= 64:
            return
        place = signed(caller.node_id)
        known = [row["instance"] for row in self._state.query(tables.INSTANCE_OF, {"node_id": place})]
        if known == [instance]:
            with contextlib.suppress(FlowerError):  # it was not connected
                fleet_handlers.deactivate_node(fleet_pb2.DeactivateNodeRequest(node_id=caller.node_id), self._state)
        self._state.query(tables.KEEP_INSTANCE, {"node_id": place, "instance": instance})

    def deactivate(self, request: Any, caller: Caller) -> Any:
        """Note that a node goes."""
        return fleet_handlers.deactivate_node(request, self._state)

    def take_heartbeat(self, request: Any, caller: Caller) -> Any:
        """Take a node's sign of life; what it works on and nobody waits for, it drops."""
        run_id, _, message_id = str(caller.head.get(WORK_HEADER, "")).partition("/")
        if reason := self._drop_reason(caller.node_id, run_id, message_id):
            caller.context.set_trailing_metadata(((DROP_HEADER, reason),))
        interval, now = request.heartbeat_interval, datetime.now(UTC)
        if not INTERVALS[0] <= interval <= INTERVALS[1]:
            raise FlowerError(2003, f"a heartbeat interval of {interval} s is outside {INTERVALS}")
        beat = {"node_id": signed(caller.node_id), "until": now.timestamp() + BEATS_MISSED * interval}
        known = self._state.query(tables.BEAT, {**beat, "at": now.isoformat()})
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=bool(known))

    def _drop_reason(self, node_id: int, run_id: str, message_id: str) -> str:
        """Return why a node drops the message that it works on, "" where it does not."""
        if not re.fullmatch(r"[0-9]{1,20}", run_id) or int(run_id) >= 2**64:
            return ""
        if not self._state.query(tables.IS_UNFINISHED, {"run_id": signed(int(run_id))}):
            self._overdue[node_id] = run_id
            return RUN_OVER
        self._overdue.pop(node_id, None)
        message = {"message_id": message_id, "node_id": signed(node_id), "now": time.time()}
        return "" if self._state.query(tables.WAITED_FOR, message) else TIME_OVER

    # Messages -------------------------------------------------------------------------------------------------------

    def hand_out(self, request: Any, caller: Caller) -> Any:
        """Hand out a message."""
        head = self._next(caller.node_id)
        if head is None:
            return fleet_pb2.PullMessagesResponse()
        tree = self._state.store.get_object_tree(head.metadata.message_id)
        return fleet_pb2.PullMessagesResponse(messages_list=[head], message_object_trees=[tree])

    def hand_out_whole(self, request: Any, caller: Caller) -> Any:
        """Hand out a message with its parts, by which it counts as received; parts too large for an answer stay."""
        if request.again:  # the answer before may not have arrived
            self._count_received(caller.node_id, times=-1)
        head = self._next(caller.node_id)
        if head is None:
            return exchange_pb2.NextResponse()
        message_id, store, parts = head.metadata.message_id, self._state.store, dict[str, bytes]()
        with self._state.session():
            tree, sizes = store.get_object_tree(message_id), store.sizes([message_id])
            if sum(sizes.values()) + tree.ByteSize() <= LARGEST_PARTS - PART_BYTES * len(sizes):
                parts = store.contents(sizes)
                self._count_received(caller.node_id, message_id)
        return exchange_pb2.NextResponse(
            head=head.SerializeToString(),
            tree=tree.SerializeToString(),
            parts=pack_parts(parts),
        )

    def _next(self, node_id: int) -> message_pb2.Message | None:
        """Return the head of a node's first message.

        The node asks for work, so it works on none: what it had begun has ended with its process. What has come of a
        reply is deleted, and a message that it received in vain, again and again, is answered by an error.
        """
        self._overdue.pop(node_id, None)
        place = {"node_id": signed(node_id)}
        self._state.end_uploads(node_id)
        for row in self._state.query(tables.NEXT, {**place, "now": time.time()}):
            if self._received.get(node_id) == (row["message_id"], MAX_DELIVERIES):
                answered = {**row, "reply_to_message_id": row["message_id"], "src_node_id": row["dst_node_id"]}
                times = f"{MAX_DELIVERIES} times, and ended each time before it had answered"
                self._store_error(answered, ErrorCode.CLIENT_APP_CRASHED, f"the node received the message {times}")
                continue
            about = {**row, "run_id": unsigned(row["run_id"]), "src_node_id": SUPERLINK, "dst_node_id": node_id}
            return message_pb2.Message(metadata=message_pb2.Metadata(**about), content=RecordDict())
        return None

    def _count_received(self, node_id: int, message_id: str = "", times: int = 1) -> None:
        """Count how often a node has received its message; it begins again with each start of the server."""
        known, before = self._received.get(node_id, ("", 0))
        if message_id in ("", known):
            message_id, times = known, max(0, before + times)
        self._received[node_id] = message_id, times

    def wait_for_message(self, answer: Any, caller: Caller) -> bool:
        """Hold a call while there is no message; return whether one has come."""
        node_id = caller.node_id
        if answer.ByteSize():
            return False
        return self._long_poll.wait(node_id, lambda: self._has_mail(node_id), caller.context)

    def _has_mail(self, node_id: int) -> bool:
        return bool(self._state.query(tables.HAS_MAIL, {"node_id": signed(node_id), "now": time.time()}))

    def hand_out_part(self, request: Any, caller: Caller) -> Any:
        """Hand out a part of a message to the node that it is for."""
        if self._is_anothers(caller.node_id, request.object_id):
            return message_pb2.PullObjectResponse(object_found=False, object_available=False)
        self._check_unfinished(request.run_id)
        content = self._state.store.contents([request.object_id])
        known = bool(content or self._state.query(tables.IS_KNOWN, {"object_id": request.object_id}))
        return message_pb2.PullObjectResponse(
            object_found=known, object_available=bool(content), object_content=content.get(request.object_id, b"")
        )

    def _check_unfinished(self, run_id: int) -> None:
        """Raise FlowerError where a run is over, or was lost with an earlier database."""
        if not self._state.query(tables.IS_UNFINISHED, {"run_id": signed(run_id)}):
            raise FlowerError(2007, f"run {run_id} is over")

    def _is_anothers(self, node_id: int, object_id: str) -> bool:
        """Return whether an object is there, and no message to this node or part of one; note an attempt to get it."""
        if self._state.query(tables.ADDRESSED, {"node_id": signed(node_id), "object_id": object_id}):
            return False
        known = bool(self._state.query(tables.IS_KNOWN, {"object_id": object_id}))
        if known:
            self._note_refused(node_id, "a call for what is another client's")
        return known

    def note_received(self, request: Any, caller: Caller) -> Any:
        """Note that a node has a whole message, and keep its parts, which Flower would delete, until the reply is here.

        A node that is killed while it works gets the message again.
        """
        message_id = request.message_object_id
        if self._is_anothers(caller.node_id, message_id):
            return message_pb2.ConfirmMessageReceivedResponse()
        self._check_unfinished(request.run_id)
        self._count_received(caller.node_id, message_id)
        return message_pb2.ConfirmMessageReceivedResponse()

    def describe_run(self, request: Any, caller: Caller) -> Any:
        """Hand out what is known of a run."""
        return fleet_handlers.get_run(request, self._state)

    def hand_out_bundle(self, request: Any, caller: Caller) -> Any:
        """Hand out a run's bundle."""
        return fleet_handlers.get_fab(request, self._state)

    # Replies --------------------------------------------------------------------------------------------------------

    def take_whole(self, request: Any, caller: Caller) -> Any:
        """Take a reply, or its head and as many parts as a call may have; the others follow one by one."""
        try:
            head, tree = message_pb2.Message.FromString(request.head), message_pb2.ObjectTree.FromString(request.tree)
        except DecodeError:
            raise RefusedCallError(StatusCode.INVALID_ARGUMENT, "the reply cannot be read") from None
        given = {part.id: part.content for part in request.parts}
        wanted = self._take(caller, head, tree, request.seconds, given)
        return exchange_pb2.ReplyResponse(wanted=wanted, session_id=tree.object_id if wanted else "")

    def take_head(self, request: Any, caller: Caller) -> Any:
        """Take the head of a reply; its parts follow one by one."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise RefusedCallError(StatusCode.INVALID_ARGUMENT, "one reply a call, with its object tree")
        head, tree = request.messages_list[0], request.message_object_trees[0]
        wanted = self._take(caller, head, tree, sum(request.clientapp_runtime_list), {})
        return fleet_pb2.PushMessagesResponse(
            reconnect=fleet_pb2.Reconnect(reconnect=5),
            results={tree.object_id: 0},
            objects_to_push=wanted,
            session_id=tree.object_id if wanted else "",
        )

    def _take(self, caller: Caller, head: Any, tree: Any, seconds: float, given: Mapping[str, bytes]) -> list[str]:
        """Take a node's first reply to its message, if of a possible size; return the parts that are to follow."""
        reply, node_id = head.metadata, caller.node_id
        if not all(abs(time) <= MOST_SECONDS for time in (reply.created_at, reply.ttl, seconds)) or seconds < 0.0:
            self._refuse(node_id, "a reply with an impossible time", "a reply has possible times alone")
        if reply.src_node_id != node_id:
            self._refuse(node_id, "a reply in another node's name", "a node answers in its own name alone")
        if tree.object_id != reply.message_id:
            self._refuse(node_id, "a reply with the parts of another", "a reply's id is that of its object tree")
        both = {"answered": reply.reply_to_message_id, "reply": reply.message_id}
        if self._state.query(tables.OTHER_REPLY, both):
            self._note_refused(node_id, "a second reply to the same message")
            return []
        objects, allowed = self._allowance(reply.reply_to_message_id)
        if count(tree, objects) > objects:
            self._answer_in_its_place(reply, f"a reply of more than the {objects} objects that its message allows")
            return []
        names = {*identifiers(tree)}
        if self._state.query(tables.HAS_MESSAGE, {"ids": json.dumps([*names])}):
            # What stands below a message that was received may be pulled by whom it is for: another's parts, say.
            self._refuse(node_id, "a reply with a message as a part", "no message is a part of a reply")
        if head.ByteSize() > LARGEST_HEAD:
            self._answer_in_its_place(reply, "a reply with content in its head")
            return []
        if given.keys() >= names:
            self._store(head, seconds, sum(len(given[name]) for name in names), allowed, tree, given)
            return []
        with self._state.session():  # all or nothing
            if not self._state.begin_upload(head, seconds, allowed):
                self._check_unfinished(reply.run_id)
                return []
            wanted = self._state.store.preregister(reply.run_id, tree)
        for name in given.keys() & {*wanted}:
            self._take_part(node_id, reply.message_id, name, given[name])
        if not wanted:  # other replies had brought its parts
            self._store_if_whole(head, seconds, allowed)
        return [name for name in wanted if name not in given]

    def take_part(self, request: Any, caller: Caller) -> Any:
        """Take a part of a reply, while the reply stays within its allowance."""
        about = (request.session_id, request.object_id, request.object_content)
        return message_pb2.PushObjectResponse(stored=self._take_part(caller.node_id, *about))

    def _take_part(self, node_id: int, reply_id: str, name: str, content: bytes) -> bool:
        """Store a part; return whether it was new. Nothing is left of a reply that it makes too large."""
        upload = self._state.find_upload(node_id, reply_id)
        if upload is None:
            return False
        with self._checked(node_id):
            is_new, left = self._state.store_part(node_id, reply_id, name, content)
        head = message_pb2.Message.FromString(upload["head"])
        self._store_if_whole(head, upload["seconds"], upload["allowed"], left)
        return is_new and left >= 0

    def _store_if_whole(self, head: Any, seconds: float, allowed: int, left: int = 0) -> None:
        """Store a reply that comes part by part, once all parts are here or too many."""
        size = self._state.store.whole_size(head.metadata.message_id) if left >= 0 else allowed - left
        if size is not None:
            self._store(head, seconds, size, allowed)

    def _store(self, head: Any, seconds: float, size: int, allowed: int, *whole: Any) -> None:
        """Store a reply that came as a whole, with its tree and parts, or part by part; or an error in its place."""
        reply, stored = head.metadata, False
        with self._state.session():
            if not whole and not self._state.end_upload(reply.src_node_id, reply.message_id):
                return  # another call stores it
            if size <= allowed:
                with self._checked(reply.src_node_id):
                    stored = self._state.store_reply(head, size, seconds, *whole)
            if not whole and not stored:
                self._state.store.delete_all([reply.message_id])
        if stored:
            self._state.note_reply()
            return
        self._check_unfinished(reply.run_id)
        if size > allowed:
            megabytes = f"{allowed / 1e6:.1f} MB"
            self._answer_in_its_place(reply, f"a reply of more than the {megabytes} that its message allows")

    def _allowance(self, message_id: str) -> tuple[int, int]:
        """Return how many objects, and how many bytes, a reply to this message may have."""
        message = {"message_id": message_id}
        known = self._state.query(tables.MEASURED, message)
        if not known:
            known = self._state.query(tables.SIZE, message)
            if known[0]["objects"]:  # as long as its parts are here
                self._state.query(tables.KEEP_SIZE, {**message, **known[0]})
        objects, total = known[0]["objects"], known[0]["bytes"]
        return TIMES * objects + SLACK_OBJECTS, TIMES * total + SLACK_BYTES

    def _answer_in_its_place(self, reply: Any, reason: str) -> None:
        """Store an error in place of a reply that is refused: the run learns at once, and by whom."""
        self._note_refused(reply.src_node_id, reason)
        names = ("reply_to_message_id", "group_id", "message_type", "created_at", "ttl", "run_id", "src_node_id")
        about = {name: getattr(reply, name) for name in names}
        self._store_error(about, REPLY_TOO_LARGE, f"the SuperLink refused {reason}")

    def _store_error(self, reply: Mapping[str, Any], code: int, reason: str) -> None:
        numbers = {name: unsigned(reply[name]) for name in ("run_id", "src_node_id")}
        about = Metadata(**{**reply, **numbers, "message_id": "", "dst_node_id": SUPERLINK})
        error = make_message(metadata=about, error=Error(code, reason))
        set_message_id(error, error.object_id)
        self._state.store_error(error)

    def _note_refused(self, node_id: int, what: str) -> None:
        note_refused(self._refusals, self._members, node_id, what)

    def _refuse(self, node_id: int, what: str, words: str) -> NoReturn:
        self._note_refused(node_id, what)
        raise RefusedCallError(StatusCode.INVALID_ARGUMENT, words)

    @contextlib.contextmanager
    def _checked(self, node_id: int) -> Iterator[None]:
        """Refuse a reply with a part that cannot be stored."""
        try:
            yield
        except ValueError as error:
            self._refuse(node_id, "a reply with a part that is not what its id says", str(error))


def count(tree: message_pb2.ObjectTree, most: int) -> int:
    """Return how many objects a tree has; more than `most` are not counted to the end."""
    number, left = 0, [tree]
    while left and number <= most:
        number += 1
        left.extend(left.pop().children)
    return number

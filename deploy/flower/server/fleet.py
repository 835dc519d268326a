# ruff: noqa: N802 (the methods of a gRPC service have its names)
"""The fleet API as we serve it: what a node may cost the SuperLink, and until when its key is good."""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import Error, Metadata
from flwr.app.message import make_message
from flwr.common.constant import PUBLIC_KEY_HEADER, SUPERLINK_NODE_ID, Status
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse, Reconnect
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.utils import get_metadata_bytes, get_metadata_str, int64_to_uint64, uint64_to_int64
from grpc import ServicerContext, StatusCode

from fairbloom.flower import ErrorCode, set_message_id
from fairbloom.logs import log
from fairbloom.protocol.names import DROP_HEADER, VERSION_HEADER, WORK_HEADER

from ...device.instance import HEADER
from ...server.long_poll import LongPoll
from ...server.members import Members
from ...server.overdue import Overdue
from ...server.rate_limit import UNDER_WAY_AT_ONCE, CallLimit, TooManyCallsError
from ...server.refusals import RefusalLog
from .run_state import HIDDEN, RunState

LARGEST_CALL = 16 << 20
"""Largest call that is taken, in bytes. Flower sends arrays in parts of 5 MiB, and bundles, of 10 MB at most, whole."""

TIMES, SLACK_BYTES, SLACK_OBJECTS = 2, 4 << 20, 1000
"""A reply may be TIMES as large as the message it answers, because DRFA's clients reply two models, and larger still by
the slack, for metrics; the same holds for its objects, which are records, arrays, and parts of arrays."""

LARGEST_HEAD = 1 << 20
"""Largest head of a reply, in bytes. A head has ids and times, or an error's words; the content comes in parts."""

REPLY_TOO_LARGE = 413
"""Code of the error that takes the place of a refused reply; Flower's own codes are below 100."""

VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,40}")
"""What a node may say of its version."""

MOST_TIMES = 3
"""How often a node receives the same message, where it ends in the midst of the work; then an error is its answer."""

REMEMBERED = 10_000
"""How many replies under way have their sizes in memory. The oldest is forgotten, and looked up if it goes on."""

COPIED = (
    "client %s comes with its key from another place than before, from %s. If its machine was not restarted, nor its "
    "key moved, somebody has a copy: fairbloom deploy rotate %s"
)
"""What the operator reads, in the audit log and in the server's, where a second device may have a client's key."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS fairbloom_sizes (message_id TEXT PRIMARY KEY, objects INTEGER, bytes INTEGER)",
    "CREATE TABLE IF NOT EXISTS fairbloom_replies "
    "(session_id TEXT PRIMARY KEY, node_id INTEGER, reply_id TEXT, allowed INTEGER)",
    "CREATE TABLE IF NOT EXISTS fairbloom_received (message_id TEXT PRIMARY KEY, times INTEGER)",
    "CREATE TABLE IF NOT EXISTS fairbloom_instances (node_id INTEGER PRIMARY KEY, instance TEXT)",
)
FORGET = (
    "DELETE FROM fairbloom_sizes WHERE message_id NOT IN (SELECT message_id FROM message_ins)",
    "DELETE FROM fairbloom_received WHERE message_id NOT IN (SELECT message_id FROM message_ins)",
    "DELETE FROM fairbloom_replies WHERE session_id NOT IN (SELECT session_id FROM object_push_sessions)",
)
SIZE = """
WITH RECURSIVE part (object_id) AS (
  SELECT :message_id UNION SELECT child_id FROM object_children JOIN part ON parent_id = part.object_id
)
SELECT count(*) AS objects, coalesce(sum(length(content)), 0) AS bytes
FROM objects WHERE object_id IN (SELECT object_id FROM part)"""
KEEP_SIZE = "INSERT OR IGNORE INTO fairbloom_sizes VALUES (:message_id, :objects, :bytes)"
MEASURED = "SELECT objects, bytes FROM fairbloom_sizes WHERE message_id = :message_id"
OTHER_REPLY = "SELECT 1 FROM message_res WHERE reply_to_message_id = :answered AND message_id != :reply"
PARENTS = "CREATE INDEX IF NOT EXISTS fairbloom_parents ON object_children (child_id)"
ADDRESSED = """
WITH RECURSIVE above (object_id) AS (
  SELECT :object_id UNION SELECT parent_id FROM object_children JOIN above ON child_id = above.object_id
)
SELECT 1 FROM message_ins WHERE dst_node_id = :node_id AND message_id IN (SELECT object_id FROM above)"""
"""An object is a node's to receive if it is a message to this node, or a part of one."""

HAS_MESSAGE = "SELECT 1 FROM message_ins WHERE message_id IN (SELECT value FROM json_each(:ids))"
IS_KNOWN = "SELECT 1 FROM objects WHERE object_id = :object_id"

LOST = """
message_id IN (SELECT object_id FROM objects) AND message_id NOT IN (SELECT reply_to_message_id FROM message_res)"""
"""What a node was handed and has not answered: a message's parts are kept until the run has the reply."""

MAIL = f"""
SELECT 1 FROM message_ins WHERE dst_node_id = :node_id AND created_at + ttl > :now AND (delivered_at = '' OR {LOST})
AND message_id NOT IN (SELECT root_object_id FROM object_push_session_roots)"""  # noqa: S608
"""A node is handed a message once its parts are here: it would ask for each in vain, again and again."""

WAITED_FOR = """
SELECT 1 FROM message_ins WHERE message_id = :message_id AND dst_node_id = :node_id AND created_at + ttl > :now"""

RECEIVED = """
INSERT INTO fairbloom_received SELECT message_id, 1 FROM message_ins
WHERE message_id = :message_id AND dst_node_id = :node_id
ON CONFLICT (message_id) DO UPDATE SET times = times + 1"""
"""A node counts its own messages alone."""
IN_VAIN = f"""
SELECT message_id, run_id, group_id, message_type, created_at, ttl FROM message_ins
WHERE dst_node_id = :node_id AND created_at + ttl > :now AND {LOST}
AND message_id IN (SELECT message_id FROM fairbloom_received WHERE times >= {MOST_TIMES})"""  # noqa: S608
BROKEN_OFF = """
SELECT session_id FROM fairbloom_replies
WHERE node_id = :node_id AND session_id IN (SELECT session_id FROM object_push_sessions)"""

INSTANCE_OF = "SELECT instance FROM fairbloom_instances WHERE node_id = :node_id"
KEEP_INSTANCE = "INSERT OR REPLACE INTO fairbloom_instances VALUES (:node_id, :instance)"

HAND_OUT_AGAIN = f"UPDATE message_ins SET delivered_at = '' WHERE dst_node_id = :node_id AND {LOST}"  # noqa: S608

HIDE = "UPDATE message_res SET delivered_at = :mark WHERE message_id = :reply_id AND delivered_at = ''"
SHOW = """
UPDATE message_res SET delivered_at = '' WHERE delivered_at = :mark AND (message_id = :reply_id OR :reply_id IS NULL)
AND message_id NOT IN (SELECT root_object_id FROM object_push_session_roots)"""
"""A run sees a reply once it is whole: one that breaks off, or grows too large, is then still ours to answer for."""

HEAD = """
SELECT message_id, reply_to_message_id, src_node_id, run_id, group_id, message_type, created_at, ttl
FROM message_res WHERE message_id = :reply_id"""
BEGIN = "INSERT INTO fairbloom_replies VALUES (:session_id, :node_id, :reply_id, :allowed)"
UNDER_WAY = """
SELECT node_id, reply_id, allowed FROM fairbloom_replies
WHERE session_id = :session_id AND session_id IN (SELECT session_id FROM object_push_sessions)"""


@dataclass
class Budget:
    """What is left of a reply's allowance while its parts arrive."""

    node_id: int
    reply_id: str
    allowed: int
    left: int


class GuardedFleet(FleetServicer):
    """Flower's fleet API, within limits.

    A reply may be as large as the message it answers allows. A larger one is refused before its parts are stored; an
    error with the reason takes its place, so that the round goes on and names the client.
    """

    def __init__(
        self,
        state_factory: LinkStateFactory,
        objectstore_factory: ObjectStoreFactory,
        enable_supernode_auth: bool,
        *,
        members: Members,
        refusals: RefusalLog,
        long_poll: LongPoll,
        overdue: Overdue | None = None,
    ) -> None:
        super().__init__(state_factory, objectstore_factory, enable_supernode_auth)
        self._members, self._refusals, self._long_poll = members, refusals, long_poll
        self._overdue = overdue or Overdue()
        self._limit = CallLimit()
        self._budgets: OrderedDict[str, Budget] = OrderedDict()
        for statement in (*TABLES, PARENTS, *FORGET):
            self._query(statement)
        # What was just whole when the SuperLink ended.
        self._query(SHOW, mark=HIDDEN, reply_id=None)

    # Who may come ---------------------------------------------------------------------------------------------------

    def ActivateNode(self, request: Any, context: ServicerContext) -> Any:
        """Let a node in whose key is registered and has not expired."""
        if get_metadata_bytes(context.invocation_metadata(), PUBLIC_KEY_HEADER) != request.public_key:
            self._refusals.note("a node in another one's name", peer=context.peer())
            context.abort(StatusCode.UNAUTHENTICATED, "a node comes by its own key alone")  # Flower does not look
        node_id = self._state.get_node_id_by_public_key(request.public_key)
        if node_id is None:
            self._refusals.note("an unregistered key", peer=context.peer())
        else:
            self._check_expiry(node_id, context)
        with self._state.session():  # all or nothing: nobody sees the node offline in between
            is_another = self._relieve(node_id, context)
            response = super().ActivateNode(request, context)
        if is_another:
            name = self._members.name_of(response.node_id)
            if self._refusals.note_event("a key at another place", client=name, peer=context.peer()):
                log.warning(COPIED, name, context.peer(), name)
        said = get_metadata_str(context.invocation_metadata(), VERSION_HEADER) or ""
        self._state.note_version(response.node_id, said if VERSION.fullmatch(said) else "")
        for statement in FORGET:
            self._query(statement)
        return response

    def _relieve(self, node_id: int | None, context: ServicerContext) -> bool:
        """Let a node's new process replace the one before; return whether it is another instance.

        The process before has ended if it was the same instance, but Flower counts it as connected for another minute.
        """
        instance = get_metadata_str(context.invocation_metadata(), HEADER) or ""
        if node_id is None or not 0 < len(instance) <= 64:
            return False
        place = uint64_to_int64(node_id)
        known = [row["instance"] for row in self._query(INSTANCE_OF, node_id=place)]
        if known == [instance]:
            self._state.deactivate_node(node_id)
        self._query(KEEP_INSTANCE, node_id=place, instance=instance)
        return known not in ([], [instance])

    def SendNodeHeartbeat(self, request: Any, context: ServicerContext) -> Any:
        """Take a node's sign of life, while its key is good; what it works on and nobody waits for, it drops."""
        self._check_expiry(request.node.node_id, context)
        working = get_metadata_str(context.invocation_metadata(), WORK_HEADER) or ""
        if reason := self._why_dropped(request.node.node_id, *working.partition("/")[::2]):
            context.set_trailing_metadata(((DROP_HEADER, reason),))
        return self._in_turn(super().SendNodeHeartbeat, request, context)

    def _why_dropped(self, node_id: int, run_id: str, message_id: str) -> str:
        """Return why a node drops the message that it works on, "" where it does not."""
        if not re.fullmatch(r"[0-9]{1,20}", run_id) or int(run_id) >= 2**64:
            return ""
        status = self._state.get_run_status({int(run_id)})[int(run_id)].status
        place = uint64_to_int64(node_id)
        waits = bool(self._query(WAITED_FOR, message_id=message_id, node_id=place, now=time.time()))
        return self._overdue.judge(node_id, run_id, waits=waits, runs=status != Status.FINISHED)

    def node_of(self, key: bytes) -> int | None:
        """Return the node that a public key is registered for."""
        return self._state.get_node_id_by_public_key(key)

    def _check_expiry(self, node_id: int, context: ServicerContext) -> None:
        since = self._members.expired(node_id)
        if since:
            name = self._members.name_of(node_id)
            self._refusals.note("an expired key", client=name, peer=context.peer())
            words = f"the key of client {name} was good until {since}: the operator replaces it (deploy rotate {name})"
            context.abort(StatusCode.UNAUTHENTICATED, words)

    # Limits ---------------------------------------------------------------------------------------------------------

    def _in_turn(self, call: Callable[[Any, ServicerContext], Any], request: Any, context: ServicerContext) -> Any:
        try:
            with self._limit.slot(request.node.node_id):
                return call(request, context)
        except TooManyCallsError:
            self.turn_away(request.node.node_id, context)

    def turn_away(self, node_id: int, context: ServicerContext) -> None:
        """End a call of a node that has too many under way."""
        self._note_refused(node_id, f"more than {UNDER_WAY_AT_ONCE} calls at once")
        context.abort(StatusCode.RESOURCE_EXHAUSTED, "too many calls of this node at once: try again")

    def PullMessages(self, request: Any, context: ServicerContext) -> Any:
        """Hand out a message; the call is held while there is none."""
        node_id = request.node.node_id
        response = self._in_turn(self._pull, request, context)
        if not response.messages_list and self._long_poll.wait(node_id, lambda: self._has_mail(node_id), context):
            response = self._in_turn(self._pull, request, context)
        return response

    def _has_mail(self, node_id: int) -> bool:
        return bool(self._query(MAIL, node_id=uint64_to_int64(node_id), now=time.time()))

    def _pull(self, request: Any, context: ServicerContext) -> Any:
        self._overdue.idle(request.node.node_id)
        self._give_up(request.node.node_id)
        if not self._has_mail(request.node.node_id):
            return PullMessagesResponse()
        with self._state.session():  # all or nothing: a message counts as handed out only if the answer is complete
            # A node asks when it has nothing to do: what it was handed before was lost on the way, or with its process.
            self._query(HAND_OUT_AGAIN, node_id=uint64_to_int64(request.node.node_id))
            return super().PullMessages(request, context)

    def _give_up(self, node_id: int) -> None:
        """Delete what a node has left of a reply, and answer the messages that it received in vain.

        It asks for work, so it works on none: what it had begun has ended with its process.
        """
        place = {"node_id": uint64_to_int64(node_id)}
        for session in self._query(BROKEN_OFF, **place):
            self._state._cleanup_push_session(session["session_id"], cleanup_messages=True)
            self._budgets.pop(session["session_id"], None)
        for asked in self._query(IN_VAIN, **place, now=time.time()):
            row = {
                **asked,
                "message_id": "",
                "reply_to_message_id": asked["message_id"],
                "src_node_id": place["node_id"],
            }
            reason = f"the node received the message {MOST_TIMES} times, and ended each time before it had answered"
            self._store_error(_metadata(row), ErrorCode.CLIENT_APP_CRASHED, reason)

    def PullObject(self, request: Any, context: ServicerContext) -> Any:
        """Hand out a part of a message to the node that it is for."""
        return self._in_turn(self._pull_part, request, context)

    def _pull_part(self, request: PullObjectRequest, context: ServicerContext) -> PullObjectResponse:
        if self._is_anothers(request.node.node_id, request.object_id):
            return PullObjectResponse(object_found=False, object_available=False)
        return super().PullObject(request, context)

    def _is_anothers(self, node_id: int, object_id: str) -> bool:
        """Return whether an object is there, and no message to this node or part of one; note an attempt to get it."""
        if self._query(ADDRESSED, node_id=uint64_to_int64(node_id), object_id=object_id):
            return False
        known = bool(self._query(IS_KNOWN, object_id=object_id))
        if known:
            self._note_refused(node_id, "a call for what is another client's")
        return known

    def GetRun(self, request: Any, context: ServicerContext) -> Any:
        """Hand out what is known of a run."""
        return self._in_turn(super().GetRun, request, context)

    def GetFab(self, request: Any, context: ServicerContext) -> Any:
        """Hand out a run's bundle."""
        return self._in_turn(super().GetFab, request, context)

    def ConfirmMessageReceived(self, request: Any, context: ServicerContext) -> Any:
        """Note that a node has a whole message, and keep its parts, which Flower would delete, until the reply is here.

        A node that is killed while it works gets the message again.
        """
        return self._in_turn(self._confirm, request, context)

    def _confirm(self, request: Any, context: ServicerContext) -> Any:
        node_id, message_id = request.node.node_id, request.message_object_id
        if self._is_anothers(node_id, message_id):
            return ConfirmMessageReceivedResponse()
        if not self._query(IS_KNOWN, object_id=message_id):
            return super().ConfirmMessageReceived(request, context)  # Flower says where the run is over
        self._query(RECEIVED, message_id=message_id, node_id=uint64_to_int64(node_id))
        return ConfirmMessageReceivedResponse()

    # Replies --------------------------------------------------------------------------------------------------------

    def PushMessages(self, request: PushMessagesRequest, context: ServicerContext) -> PushMessagesResponse:
        """Take the head of a reply, if it is the node's own, the first one, and of a possible size."""
        return cast(PushMessagesResponse, self._in_turn(self._push_head, request, context))

    def PushObject(self, request: PushObjectRequest, context: ServicerContext) -> PushObjectResponse:
        """Take a part of a reply, while the reply stays within its allowance."""
        return cast(PushObjectResponse, self._in_turn(self._push_part, request, context))

    def _push_head(self, request: PushMessagesRequest, context: ServicerContext) -> PushMessagesResponse:
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            context.abort(StatusCode.INVALID_ARGUMENT, "one reply a call, with its object tree")
        reply = message_from_proto(request.messages_list[0]).metadata
        if reply.src_node_id != request.node.node_id:
            self._note_refused(request.node.node_id, "a reply in another node's name")
            context.abort(StatusCode.INVALID_ARGUMENT, "a node answers in its own name alone")
        if request.message_object_trees[0].object_id != reply.message_id:
            self._note_refused(request.node.node_id, "a reply with the parts of another")
            context.abort(StatusCode.INVALID_ARGUMENT, "a reply's id is that of its object tree")
        if self._query(OTHER_REPLY, answered=reply.reply_to_message_id, reply=reply.message_id):
            self._note_refused(reply.src_node_id, "a second reply to the same message")
            return _taken(reply)
        objects, allowed = self._allowance(reply.reply_to_message_id)
        if count(request.message_object_trees[0], objects) > objects:
            self._answer_in_its_place(reply, f"a reply of more than the {objects} objects that its message allows")
            return _taken(reply)
        if self._query(HAS_MESSAGE, ids=json.dumps(identifiers(request.message_object_trees[0]))):
            # What stands below a message that was received may be pulled by whom it is for: another's parts, say.
            self._note_refused(reply.src_node_id, "a reply with a message as a part")
            context.abort(StatusCode.INVALID_ARGUMENT, "no message is a part of a reply")
        if request.messages_list[0].ByteSize() > LARGEST_HEAD:
            self._answer_in_its_place(reply, "a reply with content in its head")
            return _taken(reply)
        with self._state.session():  # all or nothing: a head that is not stored leaves no session behind
            response = super().PushMessages(request, context)
            if self._query(HEAD, reply_id=reply.message_id):
                self._query(
                    BEGIN,
                    session_id=response.session_id,
                    node_id=uint64_to_int64(reply.src_node_id),
                    reply_id=reply.message_id,
                    allowed=allowed,
                )
                if response.objects_to_push:
                    self._query(HIDE, mark=HIDDEN, reply_id=reply.message_id)
            else:
                self._state._cleanup_push_session(response.session_id, cleanup_messages=False)
        return response

    def _push_part(self, request: PushObjectRequest, context: ServicerContext) -> PushObjectResponse:
        budget, size = self._budget(request.session_id), len(request.object_content)
        if budget is None or budget.node_id != request.node.node_id:
            return PushObjectResponse(stored=False)
        with self.lock:
            budget.left -= size
            within = budget.left >= 0
        if not within:
            self._break_off(request.session_id, budget)
            return PushObjectResponse(stored=False)
        stored = False
        try:
            response = super().PushObject(request, context)
            stored = response.stored
            self._query(SHOW, mark=HIDDEN, reply_id=budget.reply_id)
            return response
        finally:
            if not stored:  # a part that comes again, because its receipt was lost, counts once
                with self.lock:
                    budget.left += size

    def _break_off(self, session_id: str, budget: Budget) -> None:
        """Delete what has come of a reply, and say why in its place."""
        reason = f"a reply of more than the {budget.allowed / 1e6:.1f} MB that its message allows"
        with self._state.session():
            heads = self._query(HEAD, reply_id=budget.reply_id)
            self._state._cleanup_push_session(session_id, cleanup_messages=True)
            for head in heads:
                self._answer_in_its_place(_metadata(head), reason)
        self._budgets.pop(session_id, None)

    def _allowance(self, message_id: str) -> tuple[int, int]:
        """Return how many objects, and how many bytes, a reply to this message may have."""
        self._measure(message_id)
        known = self._query(MEASURED, message_id=message_id)
        objects, size = (known[0]["objects"], known[0]["bytes"]) if known else (0, 0)
        return TIMES * objects + SLACK_OBJECTS, TIMES * size + SLACK_BYTES

    def _measure(self, message_id: str) -> None:
        """Keep a message's size, which its parts tell as long as they are here."""
        (size,) = self._query(SIZE, message_id=message_id)
        if size["objects"]:
            self._query(KEEP_SIZE, message_id=message_id, **size)

    def _budget(self, session_id: str) -> Budget | None:
        """Return the budget of a reply under way, less what has come of it by other sessions or before a restart."""
        with self.lock:
            if session_id in self._budgets:
                return self._budgets[session_id]
        found = self._query(UNDER_WAY, session_id=session_id)
        if not found:
            return None
        row = found[0]
        (stored,) = self._query(SIZE, message_id=row["reply_id"])
        left = row["allowed"] - stored["bytes"]
        budget = Budget(int64_to_uint64(row["node_id"]), row["reply_id"], row["allowed"], left)
        with self.lock:
            budget = self._budgets.setdefault(session_id, budget)
            while len(self._budgets) > REMEMBERED:
                self._budgets.popitem(last=False)
        return budget

    def _answer_in_its_place(self, reply: Metadata, reason: str) -> None:
        """Store an error in place of a reply that is refused: the run learns at once, and by whom."""
        self._note_refused(reply.src_node_id, reason)
        self._store_error(reply, REPLY_TOO_LARGE, f"the SuperLink refused {reason}")

    def _store_error(self, reply: Metadata, code: int, reason: str) -> None:
        metadata = Metadata(
            run_id=reply.run_id,
            message_id="",
            src_node_id=reply.src_node_id,
            dst_node_id=reply.dst_node_id,
            reply_to_message_id=reply.reply_to_message_id,
            group_id=reply.group_id,
            created_at=reply.created_at,
            ttl=reply.ttl,
            message_type=reply.message_type,
        )
        error = make_message(metadata=metadata, error=Error(code, reason))
        set_message_id(error, error.object_id)
        with self._state.session():
            if self._state.store_message_res(error) is not None:
                self._state._store_generated_message(error)

    def _note_refused(self, node_id: int, what: str) -> None:
        name = self._members.name_of(node_id)
        if self._refusals.note(what, client=name):
            log.warning("refused of client %s: %s", name, what)

    def _query(self, statement: str, **values: str | float | None) -> list[dict[str, Any]]:
        return self._state.query(statement, values)

    @property
    def _state(self) -> RunState:
        return cast(RunState, self.state_factory.state())  # `fairbloom server` has no other kind


def count(tree: ObjectTree, most: int) -> int:
    """Return how many objects a tree has; more than `most` are not counted to the end."""
    number, left = 0, [tree]
    while left and number <= most:
        number += 1
        left.extend(left.pop().children)
    return number


def identifiers(tree: ObjectTree) -> list[str]:
    """Return the ids of all objects of a tree."""
    found, left = list[str](), [tree]
    while left:
        below = left.pop()
        found.append(below.object_id)
        left.extend(below.children)
    return found


def _metadata(row: dict[str, Any]) -> Metadata:
    return Metadata(
        run_id=int64_to_uint64(row["run_id"]),
        message_id=row["message_id"],
        src_node_id=int64_to_uint64(row["src_node_id"]),
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=row["reply_to_message_id"],
        group_id=row["group_id"],
        created_at=row["created_at"],
        ttl=row["ttl"],
        message_type=row["message_type"],
    )


def _taken(reply: Metadata) -> PushMessagesResponse:
    """Return the answer to a reply of which nothing more is asked."""
    return PushMessagesResponse(reconnect=Reconnect(reconnect=5), results={reply.message_id: 0})

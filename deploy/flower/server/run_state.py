"""Flower's state in a database, but with runs that outlive their process, and calls that outlive a full disk."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast

from flwr.app import Message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2
from flwr.server.superlink.linkstate.linkstate_factory import SqlLinkState  # type: ignore[attr-defined]
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_children_ids_from_object_content,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.object_store.object_store_factory import SqlObjectStore  # type: ignore[attr-defined]
from sqlalchemy.exc import OperationalError, TimeoutError
from sqlalchemy.orm import Session

from ..whole import identifiers
from . import tables
from .tables import moment, signed, unsigned

MOST_STARTS = 100
"""How often a run's process may be started again before the run has failed."""

SILENCE_SECONDS = 1.0
"""Seconds between two looks for processes that fell silent a minute ago. Flower looks at every call."""

ACTIVE_SECONDS = 60.0
"""How long a run's process counts as alive after a sign of life, as with Flower."""

UNAVAILABLE = 1005
"""Of the codes of Flower's errors, one that means 503 over HTTP: the caller tries again."""

OBJECT_ID = re.compile(r"[0-9a-f]{64}")

PASSING = ("locked", "full", "disk I/O", "unable to open", "readonly")
"""Words of SQLite for faults that pass: another connection writes, the disk has no room or is away."""


class PassingFaults:
    """Answers "unavailable", after which every caller retries, when a database is busy or a disk full.

    Flower answers "internal error", after which runs and nodes give up.
    """

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Provide a session as Flower does."""
        try:
            with super().session() as session:  # type: ignore[misc] # of Flower's class, with which this is mixed
                yield session
        except (OperationalError, TimeoutError, sqlite3.OperationalError) as error:
            reason = str(getattr(error, "orig", error))
            if not isinstance(error, TimeoutError) and not any(words in reason for words in PASSING):
                raise
            raise FlowerError(UNAVAILABLE, f"the database: {reason}") from error

    def query(self, query: str, data: Sequence[dict[str, Any]] | dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Execute a statement as Flower does, but by SQLite's own driver, which takes a tenth of the time."""
        with self.session() as session:
            database: Any = session.connection().connection
            if isinstance(data, Sequence):
                database.executemany(query, data)
                return []
            found = database.execute(query, data or {})
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found]


class RunState(PassingFaults, SqlLinkState):
    """A run that has lost its process is handed to the SuperExec again, and goes on where it was."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._looked = -math.inf
        self._node_ids: dict[bytes, int] = {}
        # Called when messages have come, with the nodes that they are for.
        self.on_message: Callable[[Iterable[int]], None] = lambda nodes: None
        self._replies, self._came = threading.Condition(), 0

    def initialize(self, *given: Any, **options: Any) -> list[str]:
        """Connect, check Flower's tables and make ours; FlowerVersionError when columns are missing."""
        names: list[str] = super().initialize(*given, **options)
        tables.check_columns(self.query)
        for statement in (*tables.OURS, *tables.FORGET):
            self.query(statement)
        return names

    @property
    def store(self) -> RunStore:
        """Where the parts of messages are."""
        return cast(RunStore, self.object_store)

    # Runs -----------------------------------------------------------------------------------------------------------

    def release_runs(self) -> None:
        """Hand out again all runs that a SuperExec had taken: it is gone, and their processes with it."""
        self.query(tables.HAND_OUT_TASKS)

    def is_task_token(self, token: str) -> bool:
        """Return whether a token is that of a run's process which counts as alive."""
        return bool(self.query(tables.HAS_TASK, {"token": token, "now": moment()}))

    def _cleanup_expired_task_tokens(self) -> None:
        if time.monotonic() - self._looked < SILENCE_SECONDS:
            return
        self._looked = time.monotonic()
        self.query(tables.HAND_OUT_SILENT_TASKS, {"now": moment()})
        super()._cleanup_expired_task_tokens()

    def activate_task(self, task_id: int) -> bool:
        """Let a run's process begin, be it the first one or another after it died."""
        task = {"task_id": signed(task_id)}
        with self.session():
            (started,) = self.query(tables.COUNT_START, task)
            if started["number"] > MOST_STARTS:
                self.finish_task(task_id, "failed", f"its process died {MOST_STARTS} times")
                return False
            if started["number"] > 1:  # nobody waits for the answers to what the process before had sent
                (run,) = self.query(tables.RUN_OF, task)
                self.cleanup_run(unsigned(run["run_id"]))
            if super().activate_task(task_id):
                return True
            renewed = self.query(tables.RENEW, {**task, "until": moment(seconds_ahead=ACTIVE_SECONDS)})
            return started["number"] > 1 and bool(renewed)

    # Nodes ----------------------------------------------------------------------------------------------------------

    def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
        """Return the node that a key is registered for, which every call of a node asks."""
        known = self._node_ids  # another one from when a node is struck off: what is just being read is not kept then
        if public_key not in known:
            node_id = super().get_node_id_by_public_key(public_key)
            if node_id is None:
                return None
            known[public_key] = node_id
        return known[public_key]

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        """Strike a node off."""
        super().delete_node(owner_aid, node_id)
        self._node_ids = {}

    def register(self, public_key: bytes, name: str, node_id: int) -> bool:
        """Register a key under this number, unless it is, or was struck off; return whether anything was changed."""
        key = {"public_key": public_key}
        with self.session():
            if not self.query(tables.KNOWN_KEY, key):
                self.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 30.0, name=name)
            renumbered = self.query(tables.RENUMBER, {**key, "node_id": signed(node_id)})
        self._node_ids = {}
        return bool(renumbered)

    def strike_off_others(self, node_ids: set[int]) -> list[int]:
        """Strike off all nodes but these; return which there were."""
        others = sorted(self.versions().keys() - node_ids)
        for node_id in others:
            self.delete_node(NOOP_FLWR_AID, node_id)
        return others

    def note_version(self, node_id: int, version: str) -> None:
        """Keep which version of Fairbloom a node runs, "" for one that says none."""
        self.query(tables.KEEP_VERSION, {"node_id": signed(node_id), "version": version})

    def versions(self) -> dict[int, str]:
        """Return the nodes that are registered, each with the version of Fairbloom that it ran last, "" if unknown."""
        return {unsigned(row["node_id"]): row["version"] for row in self.query(tables.REGISTERED)}

    # Messages -------------------------------------------------------------------------------------------------------

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Delete messages and their replies, and the parts of the messages, which are kept until then."""
        super().delete_messages(message_ins_ids)
        self.store.delete_all(message_ins_ids)

    def find_replies(self, message_ids: Iterable[str], run_id: int) -> list[tuple[Any, Any]]:
        """Return heads and trees of the replies to messages of a run, handed out before or not, and of Flower's errors.

        Flower's own way deletes the messages as it hands out the replies.
        """
        with self.session():
            self.query(tables.SHOW_AGAIN, {"ids": json.dumps([*message_ids])})
            found: list[Message] = self.get_message_res({*message_ids}, run_id)
            return [(message_to_proto(reply), self.store.get_object_tree(reply.metadata.message_id)) for reply in found]

    def forget_answered(self, message_ids: Iterable[str], reply_ids: Iterable[str]) -> None:
        """Delete messages, and the replies to them."""
        with self.session():
            self.delete_messages({*message_ids})
            self.store.delete_all(reply_ids)

    def store_round(self, run_id: int, sent: Any, parts: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
        """Store messages of a run; return their ids, "" for one that is not taken, and the parts that are missing.

        Nothing but the parts is stored while any is missing. ValueError where one is not what its id says. Flower's own
        way takes ten statements a message, and counts all parts for each.
        """
        with self.session():
            children = children_of(sent.message_object_trees)
            alone = children_in({name: parts[name] for name in parts if name not in children})
            missing = self.store.take(run_id, alone | children, parts)
            if missing or not sent.messages_list:
                return [], missing
            now, taken, sizes = time.time(), list[str](), list[dict[str, Any]]()
            of_part = {name: len(content) for name, content in parts.items()}
            if not of_part.keys() >= children.keys():  # the others came before
                of_part |= self.store.sizes(children)
            for head, tree in zip(sent.messages_list, sent.message_object_trees, strict=True):
                about = head.metadata
                row = {name: getattr(about, name) for name in ("message_id", "group_id", "created_at", "ttl")}
                row |= {"message_type": about.message_type, "run_id": signed(run_id), "src_node_id": about.src_node_id}
                is_good = about.run_id == run_id and about.created_at + about.ttl > now
                stored = is_good and self.query(tables.SEND, {**row, "dst_node_id": signed(about.dst_node_id)})
                taken.append(about.message_id if stored else "")
                names = {*identifiers(tree)}
                size = {"objects": len(names), "bytes": sum(of_part[name] for name in names)}
                sizes += [{"message_id": tree.object_id, **size}] * bool(stored)
            self.query(tables.KEEP_SIZE, sizes)
            trees = zip(sent.message_object_trees, taken, strict=True)
            self.store.delete_all(tree.object_id for tree, message_id in trees if not message_id)
        self.on_message({head.metadata.dst_node_id for head in sent.messages_list})
        return taken, []

    def note_reply(self) -> None:
        """Let those that wait for replies know that one is here, whole."""
        with self._replies:
            self._came += 1
            self._replies.notify_all()

    def wait_for_answers(self, message_ids: Iterable[str], number: int, seconds: float) -> None:
        """Return once `number` of these messages are answered, or after `seconds`."""
        ids, until = {"ids": json.dumps([*message_ids])}, time.monotonic() + seconds
        while time.monotonic() < until:
            with self._replies:
                came = self._came
            (here,) = self.query(tables.HAVE_ANSWER, ids)
            if here["number"] >= number:
                return
            enough = came + number - here["number"]  # until then, another look would find too few
            with self._replies:
                while self._came < enough and self._replies.wait(until - time.monotonic()):
                    pass

    def begin_upload(self, head: message_pb2.Message, seconds: float, allowed: int) -> bool:
        """Let the parts of a reply come, of so many bytes; return whether its message waits for one."""
        row, key = _row_of_reply(head), _key_of_upload(head.metadata.src_node_id, head.metadata.message_id)
        sent = {"head": head.SerializeToString(), "seconds": seconds, "allowed": allowed}
        with self.session():
            self.query(tables.BEGIN_UPLOAD, row | sent)
            return bool(self.query(tables.UPLOAD, key))

    def find_upload(self, node_id: int, reply_id: str) -> dict[str, Any] | None:
        """Return head, seconds and allowance of a reply that comes part by part."""
        return next(iter(self.query(tables.UPLOAD, _key_of_upload(node_id, reply_id))), None)

    def end_uploads(self, node_id: int) -> None:
        """Delete what has come of a node's replies that are not whole."""
        for upload in self.query(tables.UPLOADS, {"node_id": signed(node_id)}):
            with self.session():
                self.end_upload(node_id, upload["reply_id"])
                self.store.delete_all([upload["reply_id"]])

    def end_upload(self, node_id: int, reply_id: str) -> bool:
        """Let no further part of a reply come; return whether any might."""
        return bool(self.query(tables.END_UPLOAD, _key_of_upload(node_id, reply_id)))

    def store_part(self, node_id: int, reply_id: str, part_id: str, content: bytes) -> tuple[bool, int]:
        """Store a part of a reply; return whether it is new, and how many bytes may still come.

        ValueError where it is not what its id says.
        """
        with self.session():
            is_new = self.store.fill(part_id, content)
            spent = {"bytes": len(content) if is_new else 0, **_key_of_upload(node_id, reply_id)}
            left = sum(row["left"] for row in self.query(tables.SPEND, spent))  # none: it has just ended
        return is_new, left

    def store_reply(
        self,
        head: message_pb2.Message,
        size: int,
        seconds: float,
        tree: Any = None,
        parts: Mapping[str, bytes] = MappingProxyType({}),
    ) -> bool:
        """Store a reply of `size` bytes that is here whole; return whether its message waits for one.

        Without a tree, its parts have come before. ValueError where one is not what its id says.
        """
        about = head.metadata
        with self.session():
            if not self.query(tables.STORE_REPLY, _row_of_reply(head)):
                return False
            if tree is not None:
                self.store.take(about.run_id, children_of([tree]), parts)
            work = {"run_id": signed(about.run_id), "answered": about.reply_to_message_id}
            self.query(tables.COUNT_WORK, {**work, "bytes": size, "seconds": seconds})
        return True

    def store_error(self, error: Message) -> None:
        """Store an error that takes the place of a reply."""
        parts = {name: one.deflate() for name, one in get_all_nested_objects(error).items()}
        self.store_reply(message_to_proto(error), 0, 0.0, get_object_tree(error), parts)
        self.note_reply()


class RunStore(PassingFaults, SqlObjectStore):
    """Flower's store of the parts of messages, which waits for a database as RunState does.

    Flower makes several statements for each part; here a few do for all parts of a message.
    """

    def preregister(self, run_id: int, object_tree: Any) -> list[str]:
        """Announce the parts of a message; return which of them are not here, in order."""
        return self._announce(run_id, children_of([object_tree]))

    def take(self, run_id: int, children: Mapping[str, set[str]], parts: Mapping[str, bytes]) -> list[str]:
        """Store objects, each with its parts; return those that are missing. ValueError where one is another one."""
        for name in children.keys() & parts.keys():
            check(name, parts[name], children[name])
        absent = self._announce(run_id, children, checked=children.keys() <= parts.keys())
        new = [{"object_id": name, "content": parts[name]} for name in absent if name in parts]
        if new:
            self.query(tables.FILL, new)
        return [name for name in absent if name not in parts]

    def fill(self, name: str, content: bytes) -> bool:
        """Store a part that was announced; return whether it was not here. ValueError where it is another one."""
        check(name, content, {row["child_id"] for row in self.query(tables.CHILDREN, {"ids": json.dumps([name])})})
        return bool(self.query(tables.FILL_ONE, {"object_id": name, "content": content}))

    def _announce(self, run_id: int, children: Mapping[str, set[str]], *, checked: bool = False) -> list[str]:
        """Announce objects, each with its parts; return which are not here, in order.

        A client may announce an object with other parts than it has: once they are checked, these are put right.
        """
        ids = {"ids": json.dumps([*children])}
        with self.session():
            new = {row["object_id"] for row in self.query(tables.ANNOUNCE, ids)}  # a write: nobody else writes now
            known = defaultdict[str, set[str]](set)
            if len(new) < len(children):
                for row in self.query(tables.CHILDREN, {"ids": json.dumps([*(children.keys() - new)])}):
                    known[row["parent_id"]].add(row["child_id"])
            wrong = {name for name in children.keys() - new if known[name] != children[name]}
            if wrong and not checked:
                raise ValueError("an object is known with other parts")
            for name in wrong:
                self.query(tables.DISOWN, {"parent_id": name})
                self._count_parents(dict.fromkeys(known[name], -1))
            pairs = [(parent, child) for parent in new | wrong for child in children[parent]]
            if pairs:
                self.query(tables.ADOPT, [{"parent_id": parent, "child_id": child} for parent, child in pairs])
                self._count_parents(Counter(child for _, child in pairs))
            self.query(tables.OF_RUN, {"run_id": signed(run_id), **ids})
            absent = new if len(new) == len(children) else {row["object_id"] for row in self.query(tables.ABSENT, ids)}
        return [name for name in children if name in absent]

    def get_object_tree(self, object_id: str) -> Any:
        """Return the tree of a message's parts."""
        children = defaultdict[str, list[str]](list)
        for row in self.query(tables.FAMILY, {"object_id": object_id}):
            children[row["parent_id"]].append(row["child_id"])
        if not children and not self.query(tables.IS_KNOWN, {"object_id": object_id}):
            return super().get_object_tree(object_id)  # which raises

        def tree_of(name: str) -> Any:
            return message_pb2.ObjectTree(object_id=name, children=map(tree_of, children[name]))

        return tree_of(object_id)

    def sizes(self, roots: Iterable[str]) -> dict[str, int]:
        """Return the parts of messages that are here, each with its bytes."""
        rows = self.query(tables.PARTS, {"ids": json.dumps([*roots])})
        return {row["object_id"]: row["bytes"] for row in rows if row["is_available"]}

    def whole_size(self, root: str) -> int | None:
        """Return how many bytes a message has, None while parts are missing."""
        rows = self.query(tables.PARTS, {"ids": json.dumps([root])})
        return sum(row["bytes"] for row in rows) if all(row["is_available"] for row in rows) else None

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return what is here of these parts."""
        rows = self.query(tables.CONTENTS, {"ids": json.dumps([*names])})
        return {row["object_id"]: row["content"] for row in rows if row["content"]}

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete objects that are no parts of others, with their parts that are no others' parts."""
        level = {*names}
        with self.session():
            while level:
                gone = [row["object_id"] for row in self.query(tables.UNREFERRED, {"ids": json.dumps([*level])})]
                parted = Counter(row["child_id"] for row in self.query(tables.CHILDREN, {"ids": json.dumps(gone)}))
                self.query(tables.DELETE_OBJECTS, {"ids": json.dumps(gone)})
                self._count_parents(Counter({name: -number for name, number in parted.items()}))
                level = {*parted}

    def _count_parents(self, changes: Mapping[str, int]) -> None:
        """Change how many objects each of these is a part of."""
        if changes:
            self.query(tables.COUNT_PARENTS, [{"object_id": name, "number": more} for name, more in changes.items()])


def children_of(trees: Iterable[message_pb2.ObjectTree]) -> dict[str, set[str]]:
    """Return the objects of trees, each with its parts; ValueError where a tree is none of a message."""
    found, left = dict[str, set[str]](), [*trees]
    while left:
        below = left.pop()
        children = {child.object_id for child in below.children}
        if not OBJECT_ID.fullmatch(below.object_id) or len(children) < len(below.children):
            raise ValueError(f"an object tree with {below.object_id:.80}")
        if found.setdefault(below.object_id, children) != children:
            raise ValueError(f"object {below.object_id} has two kinds of parts")
        left.extend(below.children)
    return found


def children_in(parts: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Return objects, each with its parts, as they say themselves; ValueError where one is none."""
    return {name: {*get_object_children_ids_from_object_content(content)} for name, content in parts.items()}


def check(name: str, content: bytes, children: set[str]) -> None:
    """Raise ValueError unless an object is what its id and its tree say."""
    if hashlib.sha256(content).hexdigest() != name:
        raise ValueError(f"object {name} has other content")
    validate_object_content(content)
    if {*get_object_children_ids_from_object_content(content)} != children:
        raise ValueError(f"object {name} has other parts than its tree says")


def _row_of_reply(head: message_pb2.Message) -> dict[str, Any]:
    about, failed = head.metadata, head.HasField("error")
    return {
        "message_id": about.message_id,
        "answered": about.reply_to_message_id,
        "node_id": signed(about.src_node_id),
        "run_id": signed(about.run_id),
        "now": time.time(),
        "content": None if failed else b"",
        "error": head.error.SerializeToString() if failed else None,
    }


def _key_of_upload(node_id: int, reply_id: str) -> dict[str, Any]:
    return {"node_id": signed(node_id), "reply_id": reply_id}

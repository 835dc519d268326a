"""Flower's state in a database, but with runs that outlive their process, and calls that outlive a full disk."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_PATIENCE,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    Status,
    SubStatus,
)
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate.sql_corestate import _task_status_filter
from flwr.supercore.date import now
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.run import RunStatus
from flwr.supercore.sql_mixin import SqlMixin
from flwr.supercore.state.schema.corestate_models import Task
from flwr.supercore.state.schema.linkstate_models import MessageRes
from flwr.supercore.utils import int64_to_uint64, uint64_to_int64
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError, TimeoutError
from sqlalchemy.orm import Session

MOST_STARTS = 100
"""How often a run's process may be started again before the run has failed."""

STARTS = "CREATE TABLE IF NOT EXISTS fairbloom_starts (task_id INTEGER PRIMARY KEY, number INTEGER NOT NULL)"
ONE_MORE = """
INSERT INTO fairbloom_starts (task_id, number) VALUES (:task_id, 1)
ON CONFLICT (task_id) DO UPDATE SET number = number + 1 RETURNING number"""

UNDER_WAY = "SELECT 1 FROM object_push_sessions WHERE session_id = :session_id"

VERSIONS = "CREATE TABLE IF NOT EXISTS fairbloom_versions (node_id INTEGER PRIMARY KEY, version TEXT NOT NULL)"
VERSION = """
INSERT INTO fairbloom_versions VALUES (:node_id, :version) ON CONFLICT (node_id) DO UPDATE SET version = :version"""
REGISTERED = """
SELECT node.node_id, coalesce(version, '') AS version FROM node LEFT JOIN fairbloom_versions USING (node_id)
WHERE status != 'unregistered'"""

KNOWN = "SELECT node_id, status FROM node WHERE public_key = :public_key"
RENUMBER = """
UPDATE OR IGNORE node SET node_id = :node_id
WHERE public_key = :public_key AND node_id != :node_id AND status != 'unregistered' RETURNING node_id"""

LOST = RunStatus(Status.FINISHED, SubStatus.FAILED, "the SuperLink does not know this run")

SILENCE_SECONDS = 1.0
"""Seconds between two looks for processes that fell silent a minute ago. Flower looks at every call."""

HIDDEN = "under way"
"""Written where Flower notes when it handed out a reply, as long as parts of the reply are missing: no run gets it."""

PASSING = ("locked", "full", "disk I/O", "unable to open", "readonly")
"""Words of SQLite for faults that pass: another connection writes, the disk has no room or is away."""


class Faults(threading.local):
    """The last fault of the database in this thread."""

    last: FlowerError | None = None


class PassingFaults(SqlMixin):
    """Answers "unavailable", after which every caller retries, when a database is busy or a disk full.

    Flower answers "internal error", after which runs and nodes give up.
    """

    _faults = Faults()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Provide a session as Flower does."""
        try:
            with super().session() as session:
                yield session
        except (OperationalError, TimeoutError) as error:
            reason = str(getattr(error, "orig", error))
            if isinstance(error, OperationalError) and not any(words in reason for words in PASSING):
                raise
            # Of Flower's codes, one that means 503 and UNAVAILABLE.
            self._faults.last = FlowerError(ApiErrorCode.LINKSTATE_NOT_INITIALIZED, f"the database: {reason}")
            raise self._faults.last from error


class KeepsAnswered(threading.local):
    """Whether this thread keeps messages that have a reply."""

    answered = False


class RunState(PassingFaults, SqlLinkState):
    """A run that has lost its process is handed to the SuperExec again, and goes on where it was."""

    _keeping = KeepsAnswered()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._looked = -math.inf
        self._node_ids: dict[bytes, int] = {}

    def initialize(self, log_queries: bool = False) -> list[str]:
        """Connect, and make our tables."""
        tables: list[str] = super().initialize(log_queries)
        self.query(STARTS)
        self.query(VERSIONS)
        return tables

    def release_runs(self) -> None:
        """Hand out again all runs that a SuperExec had taken: it is gone, and their processes with it."""
        self._hand_out_again(Task.finished_at.is_(None))

    def _cleanup_expired_task_tokens(self) -> None:
        if time.monotonic() - self._looked < SILENCE_SECONDS:
            return
        self._looked = time.monotonic()
        self._hand_out_again(Task.active_until < now(), _task_status_filter(Status.RUNNING))
        super()._cleanup_expired_task_tokens()

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

    def get_run_status(self, run_ids: set[int]) -> dict[int, RunStatus]:
        """Return the status of each run; one that was lost with an earlier database has failed.

        Flower has no status for it, and nodes that work for it would retry forever.
        """
        known = super().get_run_status(run_ids)
        return {run_id: known.get(run_id, LOST) for run_id in run_ids}

    def register(self, public_key: bytes, name: str, node_id: int) -> bool:
        """Register a key under this number, unless it is, or was struck off; return whether anything was changed."""
        key = {"public_key": public_key}
        with self.session():
            if not self.query(KNOWN, key):
                self.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, HEARTBEAT_DEFAULT_INTERVAL, name=name)
            renumbered = self.query(RENUMBER, {**key, "node_id": uint64_to_int64(node_id)})
        self._node_ids = {}
        return bool(renumbered)

    def note_version(self, node_id: int, version: str) -> None:
        """Keep which version of Fairbloom a node runs, "" for one that says none."""
        self.query(VERSION, {"node_id": uint64_to_int64(node_id), "version": version})

    def versions(self) -> dict[int, str]:
        """Return the nodes that are registered, each with the version of Fairbloom that it ran last, "" if unknown."""
        return {int64_to_uint64(row["node_id"]): row["version"] for row in self.query(REGISTERED)}

    def strike_off(self, public_key: bytes) -> bool:
        """Strike off the node of a key, if one is registered; return whether there was one."""
        node_id = self.get_node_id_by_public_key(public_key)
        if node_id is not None:
            self.delete_node(NOOP_FLWR_AID, node_id)
        return node_id is not None

    def _hand_out_again(self, *which: Any) -> None:
        taken = (Task.type == TaskType.SERVER_APP, Task.token.is_not(None))
        waiting = {"token": None, "active_until": None, "starting_at": None, "running_at": None}
        with self.session() as session:
            session.execute(update(Task).where(*taken, *which).values(**waiting))

    def activate_task(self, task_id: int) -> bool:
        """Let a run's process begin, be it the first one or another after it died."""
        sint64_task_id = uint64_to_int64(task_id)
        with self.session() as session:
            (started,) = self.query(ONE_MORE, {"task_id": sint64_task_id})
            if started["number"] == 1:
                return bool(super().activate_task(task_id))
            if started["number"] > MOST_STARTS:
                self.finish_task(task_id, SubStatus.FAILED, f"its process died {MOST_STARTS} times")
                return False
            run_id = session.scalars(select(Task.run_id).where(Task.task_id == sint64_task_id)).one()
            self._forget_messages(int64_to_uint64(run_id))
            if super().activate_task(task_id):
                return True
            until = now() + timedelta(seconds=HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL)
            running = (Task.task_id == sint64_task_id, _task_status_filter(Status.RUNNING))
            renewed = update(Task).where(*running).values(active_until=until).returning(Task.task_id)
            return session.scalar(renewed) is not None

    def _forget_messages(self, run_id: int) -> None:
        """Delete what the process before had sent: nobody waits for the answers."""
        self.delete_messages(self.get_message_ids_from_run_id(run_id))
        self.delete_sessions_in_run(run_id)
        self.object_store.delete_objects_in_run(run_id)

    @contextmanager
    def keeping_answered(self) -> Iterator[None]:
        """Keep messages that have a reply from being deleted: Flower deletes them as soon as it hands out the reply."""
        self._keeping.answered = True
        try:
            yield
        finally:
            self._keeping.answered = False

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Delete messages and their replies, and the parts of the messages, which are kept until then."""
        if self._keeping.answered:
            with self.session() as session:
                answers = select(MessageRes.reply_to_message_id)
                kept = session.scalars(answers.where(MessageRes.reply_to_message_id.in_(message_ins_ids))).all()
            message_ins_ids = message_ins_ids - {*map(str, kept)}
        super().delete_messages(message_ins_ids)
        for message_id in message_ins_ids:
            self.object_store.delete(message_id)

    def show_again(self, message_ids: set[str]) -> None:
        """Let the replies to these messages be handed out, whether they were before or not."""
        handed_out = (MessageRes.reply_to_message_id.in_(message_ids), MessageRes.delivered_at.not_in(["", HIDDEN]))
        with self.session() as session:
            session.execute(update(MessageRes).where(*handed_out).values(delivered_at=""))

    def forget_answered(self, reply_id: str) -> None:
        """Delete a reply, and the message that it answers."""
        with self.session() as session:
            answered = session.scalar(select(MessageRes.reply_to_message_id).where(MessageRes.message_id == reply_id))
        if answered:
            self.delete_messages({answered})

    def is_under_way(self, session_id: str) -> bool:
        """Return whether parts of what is pushed in this session are still missing."""
        return bool(self.query(UNDER_WAY, {"session_id": session_id}))

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Store a part of a message or reply; a fault of the database is raised, which Flower takes for a refusal."""
        self._faults.last = None
        stored = super().store_object(run_id, session_id, object_id, object_content)
        if not stored and self._faults.last is not None:
            raise self._faults.last
        return bool(stored)


class RunStore(PassingFaults, SqlObjectStore):
    """Flower's store of the parts of messages, which waits for a database as RunState does."""

"""SQL on the SuperLink's database: Flower's tables, whose columns are checked at the start, and ours beside them.

Flower keeps its unsigned 64-bit numbers as signed ones (`signed`, `unsigned`), and moments as text (`moment`).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ..gate import FlowerVersionError

COLUMNS: Mapping[str, str] = {
    "node": "node_id public_key status online_until last_activated_at",
    "run": "run_id primary_task_id bytes_sent bytes_recv clientapp_runtime",
    "task": "task_id run_id type token active_until starting_at running_at finished_at",
    "message_ins": (
        "message_id group_id run_id src_node_id dst_node_id reply_to_message_id created_at delivered_at ttl "
        "message_type content"
    ),
    "message_res": (
        "message_id group_id run_id src_node_id dst_node_id reply_to_message_id created_at delivered_at ttl "
        "message_type content error"
    ),
    "objects": "object_id content is_available ref_count",
    "object_children": "parent_id child_id",
    "run_objects": "run_id object_id",
}
"""Flower's tables that the statements below name, with the columns."""

MAX_DELIVERIES = 3
"""How often a node receives the same message, where it ends in the midst of the work; then an error is its answer."""

OURS = (
    "CREATE TABLE IF NOT EXISTS fairbloom_starts (task_id INTEGER PRIMARY KEY, number INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS fairbloom_versions (node_id INTEGER PRIMARY KEY, version TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS fairbloom_sizes (message_id TEXT PRIMARY KEY, objects INTEGER, bytes INTEGER)",
    "CREATE TABLE IF NOT EXISTS fairbloom_uploads (answered TEXT PRIMARY KEY, node_id INTEGER, reply_id TEXT, "
    "head BLOB, seconds REAL, allowed INTEGER, left INTEGER)",
    "CREATE TABLE IF NOT EXISTS fairbloom_instances (node_id INTEGER PRIMARY KEY, instance TEXT)",
    "CREATE INDEX IF NOT EXISTS fairbloom_parents ON object_children (child_id)",
    "CREATE INDEX IF NOT EXISTS fairbloom_objects ON run_objects (object_id)",  # read at each deletion of an object
    "CREATE INDEX IF NOT EXISTS fairbloom_destinations ON message_ins (dst_node_id)",
    "CREATE INDEX IF NOT EXISTS fairbloom_uploaders ON fairbloom_uploads (node_id)",
)
FORGET = (
    "DELETE FROM fairbloom_sizes WHERE message_id NOT IN (SELECT message_id FROM message_ins)",
    "DELETE FROM fairbloom_uploads WHERE reply_id NOT IN (SELECT object_id FROM objects)",
)
"""Delete what we keep about messages that are gone."""

# Runs and their processes -------------------------------------------------------------------------------------------

IS_UNFINISHED = """
SELECT 1 FROM run JOIN task ON task_id = primary_task_id WHERE run.run_id = :run_id AND finished_at IS NULL"""
COUNT_WORK = """
UPDATE run SET bytes_recv = bytes_recv + :bytes, clientapp_runtime = clientapp_runtime + :seconds,
bytes_sent = bytes_sent + coalesce((SELECT bytes FROM fairbloom_sizes WHERE message_id = :answered), 0)
WHERE run_id = :run_id"""
"""The bytes that a node was sent are counted with its reply: a message that is handed out is written nowhere."""
RUN_OF = "SELECT run_id FROM task WHERE task_id = :task_id"
RUN_OF_TOKEN = "SELECT run_id FROM task WHERE token = :token"  # noqa: S105
HAS_TASK = "SELECT 1 FROM task WHERE token = :token AND finished_at IS NULL AND active_until >= :now"
COUNT_START = """
INSERT INTO fairbloom_starts (task_id, number) VALUES (:task_id, 1)
ON CONFLICT (task_id) DO UPDATE SET number = number + 1 RETURNING number"""
RENEW = """
UPDATE task SET active_until = :until
WHERE task_id = :task_id AND running_at IS NOT NULL AND finished_at IS NULL RETURNING task_id"""
HAND_OUT_TASKS = """
UPDATE task SET token = NULL, active_until = NULL, starting_at = NULL, running_at = NULL
WHERE type = 'flwr-serverapp' AND token IS NOT NULL AND finished_at IS NULL"""
HAND_OUT_SILENT_TASKS = f"{HAND_OUT_TASKS} AND active_until < :now AND running_at IS NOT NULL"

# Nodes --------------------------------------------------------------------------------------------------------------

KNOWN_KEY = "SELECT 1 FROM node WHERE public_key = :public_key"
RENUMBER = """
UPDATE OR IGNORE node SET node_id = :node_id
WHERE public_key = :public_key AND node_id != :node_id AND status != 'unregistered' RETURNING node_id"""
BEAT = """
UPDATE node SET online_until = :until, status = 'online',
last_activated_at = CASE status WHEN 'online' THEN last_activated_at ELSE :at END
WHERE node_id = :node_id AND status != 'unregistered' RETURNING node_id"""
KEEP_VERSION = """
INSERT INTO fairbloom_versions VALUES (:node_id, :version) ON CONFLICT (node_id) DO UPDATE SET version = :version"""
REGISTERED = """
SELECT node.node_id, coalesce(version, '') AS version FROM node LEFT JOIN fairbloom_versions USING (node_id)
WHERE status != 'unregistered'"""
INSTANCE_OF = "SELECT instance FROM fairbloom_instances WHERE node_id = :node_id"
KEEP_INSTANCE = "INSERT OR REPLACE INTO fairbloom_instances VALUES (:node_id, :instance)"

# Messages -----------------------------------------------------------------------------------------------------------

SEND = """
INSERT INTO message_ins (message_id, group_id, run_id, src_node_id, dst_node_id, reply_to_message_id, created_at,
delivered_at, ttl, message_type, content)
SELECT :message_id, :group_id, run.run_id, :src_node_id, node.node_id, '', :created_at, '', :ttl, :message_type, x''
FROM node JOIN run ON run.run_id = :run_id JOIN task ON task.task_id = run.primary_task_id
WHERE node.node_id = :dst_node_id AND node.status IN ('online', 'offline') AND task.finished_at IS NULL
ON CONFLICT (message_id) DO UPDATE SET delivered_at = delivered_at RETURNING message_id"""
"""A message that comes again, because the answer to the call was lost, is taken as well."""

MAIL = """
FROM message_ins WHERE dst_node_id = :node_id AND created_at + ttl > :now
AND EXISTS (SELECT 1 FROM objects WHERE object_id = message_ins.message_id)
AND NOT EXISTS (SELECT 1 FROM message_res WHERE reply_to_message_id = message_ins.message_id)
AND EXISTS (SELECT 1 FROM node WHERE node_id = :node_id AND status != 'unregistered')
AND EXISTS (SELECT 1 FROM run JOIN task ON task.task_id = run.primary_task_id
WHERE run.run_id = message_ins.run_id AND task.finished_at IS NULL)"""
"""The messages of a node, which asks when it has nothing to do: those of runs that go on which it has not answered,
whether it was handed them before or not. It gets none if its key is revoked while its call is held."""

HAS_MAIL = f"SELECT 1 {MAIL}"
NEXT = f"""
SELECT message_id, group_id, run_id, dst_node_id, created_at, ttl, message_type {MAIL}
ORDER BY created_at, message_id LIMIT 2"""
"""A second one, in case the first is answered by an error."""
WAITED_FOR = """
SELECT 1 FROM message_ins WHERE message_id = :message_id AND dst_node_id = :node_id AND created_at + ttl > :now"""

ADDRESSED = """
WITH RECURSIVE above (object_id) AS (
  SELECT :object_id UNION SELECT parent_id FROM object_children JOIN above ON child_id = above.object_id
)
SELECT 1 FROM message_ins WHERE dst_node_id = :node_id AND message_id IN (SELECT object_id FROM above)"""
"""An object is a node's to receive if it is a message to this node, or a part of one."""

HAS_MESSAGE = "SELECT 1 FROM message_ins WHERE message_id IN (SELECT value FROM json_each(:ids))"
IS_KNOWN = "SELECT 1 FROM objects WHERE object_id = :object_id"

SIZE = """
WITH RECURSIVE part (object_id) AS (
  SELECT :message_id UNION SELECT child_id FROM object_children JOIN part ON parent_id = part.object_id
)
SELECT count(*) AS objects, coalesce(sum(length(content)), 0) AS bytes
FROM objects WHERE object_id IN (SELECT object_id FROM part)"""
KEEP_SIZE = "INSERT OR IGNORE INTO fairbloom_sizes VALUES (:message_id, :objects, :bytes)"
MEASURED = "SELECT objects, bytes FROM fairbloom_sizes WHERE message_id = :message_id"

# Replies ------------------------------------------------------------------------------------------------------------

OPEN_MESSAGE = """
FROM message_ins AS asked JOIN run ON run.run_id = asked.run_id JOIN task ON task.task_id = run.primary_task_id
WHERE asked.message_id = :answered AND asked.dst_node_id = :node_id AND asked.run_id = :run_id
AND asked.created_at + asked.ttl > :now AND task.finished_at IS NULL
AND NOT EXISTS (SELECT 1 FROM message_res WHERE reply_to_message_id = asked.message_id)"""
"""The message that a node answers, while a reply is of use. A reply is good as long as the message, whatever the node's
clock says."""

STORE_REPLY = f"""
INSERT INTO message_res (message_id, group_id, run_id, src_node_id, dst_node_id, reply_to_message_id, created_at,
delivered_at, ttl, message_type, content, error)
SELECT :message_id, asked.group_id, asked.run_id, asked.dst_node_id, asked.src_node_id, asked.message_id, :now,
'', asked.created_at + asked.ttl - :now, asked.message_type, :content, :error
{OPEN_MESSAGE} ON CONFLICT DO NOTHING RETURNING message_id"""
"""A node says of its reply what it answers; all else follows from the message. A run sees a reply once it is whole."""

OTHER_REPLY = """
SELECT 1 FROM message_res WHERE reply_to_message_id = :answered AND message_id != :reply
UNION ALL SELECT 1 FROM fairbloom_uploads WHERE answered = :answered AND reply_id != :reply"""

BEGIN_UPLOAD = f"""
INSERT INTO fairbloom_uploads
SELECT asked.message_id, asked.dst_node_id, :message_id, :head, :seconds, :allowed, :allowed
{OPEN_MESSAGE} ON CONFLICT DO NOTHING"""
UPLOADS = "SELECT reply_id FROM fairbloom_uploads WHERE node_id = :node_id"
UPLOAD = "SELECT head, seconds, allowed FROM fairbloom_uploads WHERE node_id = :node_id AND reply_id = :reply_id"
SPEND = """
UPDATE fairbloom_uploads SET left = left - :bytes WHERE node_id = :node_id AND reply_id = :reply_id RETURNING left"""
END_UPLOAD = "DELETE FROM fairbloom_uploads WHERE node_id = :node_id AND reply_id = :reply_id RETURNING 1"

SHOW_AGAIN = """
UPDATE message_res SET delivered_at = '' WHERE delivered_at != ''
AND reply_to_message_id IN (SELECT value FROM json_each(:ids))"""
HAVE_ANSWER = """
SELECT count(*) AS number FROM message_res
WHERE delivered_at = '' AND reply_to_message_id IN (SELECT value FROM json_each(:ids))"""

# Objects: messages and replies as trees of parts, which Flower keeps one by one -------------------------------------

ANNOUNCE = """
INSERT INTO objects (object_id, content, is_available, ref_count)
SELECT value, x'', 0, 0 FROM json_each(:ids) WHERE true ON CONFLICT DO NOTHING RETURNING object_id"""
DISOWN = "DELETE FROM object_children WHERE parent_id = :parent_id"
ADOPT = "INSERT INTO object_children (parent_id, child_id) VALUES (:parent_id, :child_id)"
COUNT_PARENTS = "UPDATE objects SET ref_count = max(0, ref_count + :number) WHERE object_id = :object_id"
OF_RUN = "INSERT OR IGNORE INTO run_objects (run_id, object_id) SELECT :run_id, value FROM json_each(:ids)"
ABSENT = "SELECT object_id FROM objects WHERE is_available = 0 AND object_id IN (SELECT value FROM json_each(:ids))"
CHILDREN = "SELECT parent_id, child_id FROM object_children WHERE parent_id IN (SELECT value FROM json_each(:ids))"
FILL = "UPDATE objects SET content = :content, is_available = 1 WHERE object_id = :object_id AND is_available = 0"
FILL_ONE = f"{FILL} RETURNING object_id"
PARTS = """
WITH RECURSIVE part (object_id) AS (
  SELECT value FROM json_each(:ids) UNION SELECT child_id FROM object_children JOIN part ON parent_id = part.object_id
)
SELECT object_id, length(content) AS bytes, is_available FROM objects WHERE object_id IN (SELECT object_id FROM part)"""
FAMILY = """
WITH RECURSIVE part (object_id) AS (
  SELECT :object_id UNION SELECT child_id FROM object_children JOIN part ON parent_id = part.object_id
)
SELECT parent_id, child_id FROM object_children WHERE parent_id IN (SELECT object_id FROM part)"""
CONTENTS = "SELECT object_id, content FROM objects WHERE object_id IN (SELECT value FROM json_each(:ids))"
UNREFERRED = """
UPDATE objects SET ref_count = 0
WHERE ref_count = 0 AND object_id IN (SELECT value FROM json_each(:ids)) RETURNING object_id"""
DELETE_OBJECTS = "DELETE FROM objects WHERE object_id IN (SELECT value FROM json_each(:ids))"


def check_columns(query: Callable[[str], list[dict[str, Any]]]) -> None:
    """Raise FlowerVersionError where the database, as this Flower made it, lacks one of COLUMNS."""
    lacking = [
        f"{table}({', '.join(missing)})"
        for table, columns in COLUMNS.items()
        if (missing := sorted({*columns.split()} - {row["name"] for row in query(f"PRAGMA table_info({table})")}))
    ]
    if lacking:
        raise FlowerVersionError(f"this Flower's database lacks columns that are relied on: {', '.join(lacking)}")


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as Flower's tables have it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    """Return the unsigned 64-bit number that one of Flower's tables has."""
    return number % (1 << 64)


def moment(*, seconds_ahead: float = 0.0) -> str:
    """Return a moment as Flower's tables have it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds_ahead)).isoformat(sep=" ")

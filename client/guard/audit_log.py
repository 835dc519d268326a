"""The audit log of a device: a line of JSON in its state folder for each message and its reply."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbloom.errors import FairbloomError, reportable
from fairbloom.logs import log
from fairbloom.protocol.names import CONFIG, FROZEN
from fairbloom.text import plural

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict

    from fairbloom.flower import ClientAppCallable

RECORD = "log.jsonl"
EARLIER = "log.1.jsonl"

# The size at which a log is renamed to the earlier one, which is replaced.
MAX_BYTES = 4 * 2**20

# Further notes on the reply that is being made; None if replies are not logged.
NOTED: ContextVar[dict[str, Any] | None] = ContextVar("NOTED", default=None)


def hold_back(words: str) -> None:
    """Note that a number is not sent, and why."""
    noted = NOTED.get()
    if noted is not None and words not in noted.setdefault("held-back", []):
        noted["held-back"].append(words)


def note(folder: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to a device's log, atomically; a disk error is only logged."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}
    line = json.dumps(entry, default=str) + "\n"
    path = folder / RECORD
    try:
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(folder / EARLIER)
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)


def log_exchange(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Log a message and its reply, if the client has a state-dir; a mod of Flower's.

    `fairbloom client` makes the state-dir.
    """
    folder = Path(str(context.node_config.get("state-dir", "")))
    if not context.node_config.get("state-dir") or not folder.is_dir():
        return answer(message, context)
    config: Mapping[str, Any] = message.content.config_records.get(CONFIG) or {}
    entry: dict[str, Any] = {"run": message.metadata.run_id, "asked": message.metadata.message_type}
    entry["terms"] = {key: value for key, value in config.items() if key != FROZEN}
    if entry["asked"] == "query":
        entry["settings"] = dict(context.run_config)
    noted: dict[str, Any] = {}
    token = NOTED.set(noted)
    try:
        reply = answer(message, context)
    except Exception as error:
        note(folder, {**entry, "refused": reportable(error)})
        raise
    finally:
        NOTED.reset(token)
    sent = plain_values(reply.content) if reply.has_content() else {}
    note(folder, {**entry, "sent": sent, **noted})
    return reply


def plain_values(content: RecordDict) -> dict[str, Any]:
    """Return the records of a reply as plain values; arrays as their types and shapes."""
    arrays = {
        name: {
            key: f"{array.dtype}, {'×'.join(map(str, array.shape))}"
            for key, array in record.items()
        }
        for name, record in content.array_records.items()
    }
    return {name: arrays.get(name) or dict(record) for name, record in content.items()}


def read_entries(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a device's log, the oldest first, without lines that a disk damaged."""
    paths = [path for path in (folder / EARLIER, folder / RECORD) if path.exists()]
    if not paths:
        raise FairbloomError(
            f"{folder} has no log of what was asked and sent: name the client's state-dir, or its"
            " client.toml; the log begins with the first message of a run"
        )
    entries = []
    for line in "".join(path.read_text(errors="replace") for path in paths).splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            log.warning("a line of %s is damaged, and is left out", folder / RECORD)
    return entries


def describe_entries(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines on the messages and replies, run by run.

    Messages in a row that differ only in numbers are one line.
    """
    for run, of_run in groupby(entries, key=lambda each: each.get("run")):
        lines = list(of_run)
        task = next(
            (each["settings"].get("task") for each in lines if "settings" in each), "unknown"
        )
        yield f"run {run}, task {task}, {lines[0]['time']} to {lines[-1]['time']}"
        for words, same in groupby(lines, key=_describe):
            count = len(list(same))
            yield plural(count, f"  {words}", f"  {words} ({count} times)")


def _describe(entry: Mapping[str, Any]) -> str:
    names = "; ".join(
        f"{record}: {', '.join(map(str, each))}" for record, each in entry.get("sent", {}).items()
    )
    answer = f"refused: {entry['refused']}" if "refused" in entry else f"sent: {names}"
    held_back = [f"held back: {each}" for each in entry.get("held-back", ())]
    return "; ".join([f"asked: {entry['asked']}", answer, *held_back])

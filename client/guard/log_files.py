"""The files of a device's log, in its state folder: lines of JSON.

`sent.jsonl` has an entry for each reply that left, and is never cut. `log.jsonl` has the refusals,
at most 4 MB, and as much in `log.1.jsonl`. What is refused therefore cannot push out what left.
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.system.files import append_line

from .log_entries import MAX_REASON, Entry, shorten

SENT = "sent.jsonl"
REFUSED = "log.jsonl"
REFUSED_EARLIER = "log.1.jsonl"

# The size at which the file of refusals is renamed to the earlier one.
MAX_REFUSED_BYTES = 4 * 2**20

# Runs with logged settings, and refusals with a count, that a process remembers.
MAX_REMEMBERED = 1000


class AuditLog:
    """The log in a device's state folder, to which its processes append whole lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._described: dict[tuple[object, ...], None] = {}
        self._refusals: dict[tuple[object, ...], int] | None = None

    def note(self, entry: Entry, settings: Mapping[str, Any]) -> None:
        """Append an entry with what is sent or was refused.

        The first entry of a run has the run's settings. Raise OSError if the disk refuses what is
        sent; that it refuses a refusal is only logged.
        """
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}
        run = (entry["run"], entry.get("settings-digest"))
        if run not in self._described:
            entry["settings"] = shorten(settings)
        if "refused" not in entry:
            _append(self._folder / SENT, entry)
        else:
            try:
                self._note_refusal(entry)
            except OSError as error:
                log.warning("the log in %s cannot be written: %s", self._folder, error.strerror)
        _remember(self._described, run, None)

    def _note_refusal(self, entry: Entry) -> None:
        """Append a refusal, and the same one again at its 10th, 100th, … repetition."""
        path = self._folder / REFUSED
        entry["refused"] = shorten(entry["refused"], MAX_REASON)
        if self._refusals is None:
            self._refusals = {_key(each): each.get("times", 1) for each in _read(path)}
        times = self._refusals.get(_key(entry), 0) + 1
        _remember(self._refusals, _key(entry), times)
        if times > 1:
            entry["times"] = times
        if str(times).rstrip("0") != "1":
            return
        if _size_of(path) > MAX_REFUSED_BYTES:
            path.replace(self._folder / REFUSED_EARLIER)
        _append(path, entry)


@lru_cache(maxsize=8)
def open_log(folder: Path) -> AuditLog:
    """Return the log in a state folder."""
    return AuditLog(folder)


def read_entries(folder: Path) -> Iterator[Entry]:
    """Return the entries of a device's log, the oldest first, without lines that a disk damaged.

    Raise FairbloomError if there is no log.
    """
    paths = [folder / name for name in (SENT, REFUSED_EARLIER, REFUSED)]
    if not any(path.exists() for path in paths):
        raise FairbloomError(
            f"{folder} has no log of what was asked and sent: name the client's state-dir, or its"
            " client.toml; the log begins with the first message of a run"
        )
    return heapq.merge(*map(_read, paths), key=lambda entry: str(entry["time"]))


def _key(entry: Entry) -> tuple[object, ...]:
    return (entry["run"], entry.get("asked"), entry.get("refused"))


def _remember(table: dict[Any, Any], key: object, value: object) -> None:
    table[key] = value
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, entry: Entry) -> None:
    append_line(path, json.dumps(entry, default=str).encode())


def _read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file, without damaged lines."""
    if not path.exists():
        return
    with path.open(errors="replace") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if isinstance(entry, dict) and {"time", "run", "asked"} <= entry.keys():
                yield entry
            else:
                log.warning("a line of %s is damaged, and is left out", path)

"""The entries of a device's log: how they are shortened and shown."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from fairbloom.logs import escape_unprintable
from fairbloom.text import plural, text_if

# Most characters of a value, and of a table of values. A longer one is logged as digest and size.
MAX_VALUE = 200
MAX_TABLE = 10_000

# Most characters of the reason of a refusal.
MAX_REASON = 1_000

Entry = dict[str, Any]

# The number in entries of what leaves outside of runs: profiles, tables, answers on a schema.
NO_RUN = 0


def shorten(value: Any, most: int = MAX_VALUE) -> Any:
    """Return a value, or the digest and the size of one with more than `most` characters.

    The values of a table are shortened one by one.
    """
    if isinstance(value, Mapping):
        value = {shorten(str(key)): shorten(each) for key, each in value.items()}
        most = MAX_TABLE
    written = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(written) <= most:
        return value
    return f"sha256 {sha256(written.encode()).hexdigest()[:12]}, {len(written)} characters"


def describe_entry(entry: Entry) -> str:
    """Return what a message asked and what was sent, refused and held back, without numbers."""
    if "refused" in entry:
        answer = f"refused: {entry['refused']}"
    else:
        sent = [
            f"{record}: {each if isinstance(each, str) else ', '.join(map(str, each))}"
            for record, each in entry.get("sent", {}).items()
        ]
        answer = f"sent: {'; '.join(sent)}"
    more = [f"held back: {each}" for each in entry.get("held-back", ())]
    more += [f"spent: {count} {what}" for what, count in entry.get("spent", {}).items()]
    return "; ".join([f"asked: {entry['asked']}", answer, *more])


@dataclass
class _RunEntries:
    """The entries of one run: its task, the first and last time, and how often each row occurs."""

    task: str
    first: str
    last: str = ""
    left: str = ""
    rows: dict[str, int] = field(default_factory=dict)


def describe_entries(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield lines on what left, on the schemas, and on each run's messages and replies.

    Messages of a run that differ only in numbers are one line.
    """
    runs: dict[object, _RunEntries] = {}
    seen: dict[str, tuple[set[object], set[str]]] = {}
    left = 0
    ends: list[Entry] = []
    for entry in entries:
        run = runs.setdefault(entry["run"], _RunEntries("unknown", entry["time"]))
        run.task = str(entry.get("task", run.task))
        run.last = str(entry["time"])
        if "left" in entry:
            of_account = ", ".join(f"{count} {what}" for what, count in entry["left"].items())
            run.left = f"; left of the privacy account: {of_account}"
        row = describe_entry(entry)
        if "refused" in entry:
            run.rows[row] = max(entry.get("times", 1), run.rows.get(row, 0))
            continue
        run.rows[row] = run.rows.get(row, 0) + 1
        left += 1
        ends = [*ends[:1], entry]
        if entry["run"] == NO_RUN:
            continue
        numbers, settings = seen.setdefault(entry.get("schema", ""), (set(), set()))
        numbers.add(entry["run"])
        settings.add(entry.get("settings-digest", ""))
    lines = [_describe_ends(left, ends), *(_describe_seen(*item) for item in seen.items())]
    for number, run in runs.items():
        what = "outside of runs" if number == NO_RUN else f"run {number}, task {run.task}"
        lines.append(f"{what}, {run.first} to {run.last}{run.left}")
        for row, times in run.rows.items():
            least = text_if("refused: " in row, "at least ")
            lines.append(plural(times, f"  {row}", f"  {row} ({least}{times} times)"))
    # much of this was written by the server: a terminal would obey its control characters
    return map(escape_unprintable, lines)


def _describe_ends(left: int, ends: list[Entry]) -> str:
    if not ends:
        return "nothing has left this device"
    first, last = (
        f"{entry['time']}, {_name_run(entry)}, {describe_entry(entry)}"
        for entry in (ends[0], ends[-1])
    )
    return f"{left} {plural(left, 'reply', 'replies')} left; the first: {first}; the last: {last}"


def _name_run(entry: Entry) -> str:
    return "outside of runs" if entry["run"] == NO_RUN else f"run {entry['run']}"


def _describe_seen(schema: str, seen: tuple[set[object], set[str]]) -> str:
    runs, settings = seen
    of = f"schema {schema}" if schema else "without a schema"
    words = f"{of}: {len(runs)} {plural(len(runs), 'run', 'runs')}"
    if len(settings) > 1:
        words += f" with {len(settings)} different settings"
    return f"{words}. The difference of two runs can show single rows: docs/privacy.md"

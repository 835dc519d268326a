"""The audit log of a federation: who did what and when, one JSON line each, linked so that an edited line shows.

Each line carries, as `chain`, the SHA-256 of the chain of the line before and of its own content. That finds a line
that was changed, inserted, or removed before others. It cannot find lines cut off at the end, whole older files that
are gone (the log goes on in a new file when it is large, and the oldest is deleted), nor a log that somebody
with the folder's account has rewritten as a whole: for that, send the lines elsewhere as they come.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairbloom.logs import escape_unprintable
from fairbloom.system.lock import open_locked

from ..errors import DeployError

FILE = "audit.jsonl"

LARGEST_BYTES, KEPT_FILES = 10 << 20, 5
"""Size from which on the log is continued in a new file, and how many older ones are kept; audit.jsonl.1 is the newest
of them."""

CONTINUED = "log continued"
"""Event of the first line of a new file, which says as `after` what it is linked to."""

TAIL_BYTES = 1 << 18
"""How many bytes at the end of the log are read to find its last line, which is far shorter."""


def note(folder: Path, event: str, **about: str | int | float | None) -> None:
    """Append a line on `event` to the log in `folder`, on disk when this returns; safe with many processes."""
    # What a stranger sends must not fill the log.
    kept = {key: value[:2_000] if isinstance(value, str) else value for key, value in about.items()}
    log = open_locked(folder / FILE, wait=True, mode=0o600)
    try:
        size = os.lseek(log, 0, os.SEEK_END)
        tail = os.pread(log, TAIL_BYTES, max(0, size - TAIL_BYTES))
        previous = tail.removesuffix(b"\n").rpartition(b"\n")[2]
        if size >= LARGEST_BYTES and tail.endswith(b"\n"):
            new = _continue(folder, _link(previous))
            os.close(log)
            log = new
            size = os.lseek(log, 0, os.SEEK_END)
            previous = os.pread(log, TAIL_BYTES, 0).removesuffix(b"\n")
        # A line that a crash has torn stays as it is, ended here; the next line vouches for what is left of it.
        start = "" if tail.endswith(b"\n") or not tail else "\n"
        _append(log, size, f"{start}{_line(_make_entry(event, kept), _link(previous))}\n")
    finally:
        os.close(log)


def _make_entry(event: str, about: Mapping[str, str | int | float | None]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now, "event": event, "account": account_name(), **about}


def _append(log: int, size: int, text: str) -> None:
    """Write whole lines at the end of an open log of this size, or nothing, and wait until they are on disk."""
    line = text.encode()
    try:
        while line:
            line = line[os.write(log, line) :]
        os.fsync(log)
    except OSError:  # a full disk leaves no half of a line
        os.ftruncate(log, size)
        raise


def _continue(folder: Path, link: str) -> int:
    """Begin a new file behind a line with this link, while the old one is locked; return the new one, locked."""
    new = os.open(folder / f"{FILE}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(new, fcntl.LOCK_EX)
        _append(new, 0, _line(_make_entry(CONTINUED, {"after": link}), link) + "\n")
        for number in range(KEPT_FILES, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                _file(folder, number - 1).rename(_file(folder, number))
        (folder / f"{FILE}.new").rename(folder / FILE)
    except BaseException:
        os.close(new)
        raise
    return new


def _file(folder: Path, number: int) -> Path:
    """Return the log's file, or an earlier one by its number."""
    return folder / (f"{FILE}.{number}" if number else FILE)


def read_whole(folder: Path) -> bytes:
    """Return the log, older files included, up to a whole line, while others may be writing; b"" for none."""
    if not (folder / FILE).exists():
        return b""
    with os.fdopen(open_locked(folder / FILE, wait=True), "rb") as log:
        return _read_older(folder) + log.read()


def _read_older(folder: Path) -> bytes:
    files = [_file(folder, number) for number in range(KEPT_FILES, 0, -1)]
    return b"".join(file.read_bytes() for file in files if file.exists())


def read_text(folder: Path) -> str:
    """Return the log as it is, a JSON object a line; "" where there is none."""
    return "".join(f"{line.decode(errors='replace')}\n" for line in _lines(folder))


def show(folder: Path) -> None:
    """Print the log as a table."""
    from rich.table import Table
    from rich.text import Text

    from fairbloom.command import Terminal

    table = Table(title=str(folder / FILE), title_justify="left")
    for heading in ("line", "time", "account", "event", "about"):
        table.add_column(heading, overflow="fold")
    for number, line in enumerate(_lines(folder), 1):
        entry = _entry(line) or {"event": f"not a whole line: {line.decode(errors='replace')}"}
        entry.pop("chain", None)
        first = [str(entry.pop(key, "")) for key in ("time", "account", "event")]
        about = ", ".join(f"{key} {value}" for key, value in entry.items() if value is not None)
        table.add_row(*(Text(escape_unprintable(cell)) for cell in (str(number), *first, about)))
    Terminal().print(table)


def latest_entries(folder: Path, beginning: str, most: int) -> list[dict[str, Any]]:
    """Return the last entries with an event that begins with a word, the latest first, of those at the log's end."""
    with (folder / FILE).open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES))
        entries = filter(None, map(_entry, log.read().split(b"\n")))
    found = [entry for entry in entries if str(entry.get("event", "")).startswith(beginning)]
    return found[: -most - 1 : -1]


def first_broken_line(folder: Path) -> int | None:
    """Return the number, from 1, of the first line that does not fit to those before it; None where all fit."""
    previous, torn = b"", False
    lines = _lines(folder)
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is not None:
            chain = entry.pop("chain", None)
            link = str(entry.get("after")) if number == 1 and entry.get("event") == CONTINUED else _link(previous)
            if _line(entry, link).encode() != line or chain is None:
                return number - torn
        elif torn:
            return number - 1
        previous, torn = line, entry is None
    return len(lines) if torn else None


def _lines(folder: Path) -> list[bytes]:
    try:
        content = _read_older(folder) + (folder / FILE).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DeployError(f"the audit log {folder / FILE} cannot be read: {error.strerror}") from None
    return content.removesuffix(b"\n").split(b"\n") if content else []


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _line(entry: dict[str, Any], link: str) -> str:
    """Return the text of an entry with its chain, after a line with the link `link`."""
    chain = hashlib.sha256(f"{link}{json.dumps(entry)}".encode()).hexdigest()
    return json.dumps({**entry, "chain": chain})


def _link(line: bytes) -> str:
    """Return what the line after this one is linked to: its chain, or the hash of a torn line."""
    entry = _entry(line)
    return str(entry["chain"]) if entry and "chain" in entry else hashlib.sha256(line).hexdigest()


def account_name() -> str:
    """Return the name of the account that this process runs as, or its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user has often no name
        return str(os.geteuid())

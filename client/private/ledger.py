"""The ledger of a privacy account: what was charged, the kept replies, and halts.

A line is on the disk before any noise is drawn for it, so that a crash is spent. Before the line, a
file of intent has it whole: a torn last line is that charge if the file says so, and nothing
otherwise. A line in the middle that cannot be read means that everything is spent.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from fairbloom.errors import ReportableError
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import open_locked
from fairbloom.system.versions import read_sealed, write_sealed

from .budget import REPORTS, UNITS

FILE = "ledger.jsonl"
INTENT = "intent.json"
REPLIES = "replies"

# Replies to each kind of message that are kept.
KEPT_REPLIES = 2

# The key of the line that an owner's resumption writes.
RESUMED = "resumed"

# The reply of an account that cannot be read.
LOST = "the privacy account of these data is not there: its owner must restore its folder"

# What a test report costs of μ².
SHARE = "mu2"

# What a line counts: units and reports, the share of test reports, and the run.
Line = dict[str, Any]
NOTHING: Line = {UNITS: 0, REPORTS: 0, SHARE: 0.0, "run": 0}
DAMAGED: Line = {"key": "", **NOTHING, UNITS: math.inf, REPORTS: math.inf}


class AccountError(ReportableError):
    """A refusal of an account that depends on no row, and costs nothing."""


@dataclass(frozen=True, kw_only=True)
class KeptRows:
    """The rows of an account: `train` and `test` many are trained on and tested on.

    `schema` is the text that they were read with. `place` is the account's folder, with their
    digests, which are salted by `salt`.
    """

    schema: str
    salt: str
    train: int
    test: int
    place: Path = Path()


def read_part(path: Path, parse: Callable[[BinaryIO], Any]) -> Any:
    """Return what an account's file says; raise AccountError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return parse(file)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).splitlines()[:3])
        raise AccountError(
            f"{path} of a privacy account cannot be read ({why}): restore it",
            LOST,
        ) from error


# What this process has read of ledgers, by their folders: a long one is not parsed again.
_read: dict[Path, tuple[bytes, list[Line]]] = {}


def parse_line(line: bytes) -> Line:
    """Return what a whole line says; everything is spent if it cannot be read."""
    try:
        read = json.loads(line)
        return read if read.keys() >= NOTHING.keys() else DAMAGED
    except (ValueError, AttributeError):
        return DAMAGED


@dataclass(frozen=True)
class Ledger:
    """The lines and the kept replies of an account; the caller holds the account's lock."""

    folder: Path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the account: devices with equal data on one machine share it."""
        try:
            descriptor = open_locked(self.folder / "lock", wait=True, needed=True)
        except OSError as error:
            raise AccountError(
                f"the privacy account's folder cannot be locked ({error.strerror}): its owner must"
                " make it writable, or put it on a file system with locks (limits.privacy.ledger)"
            ) from error
        with os.fdopen(descriptor):  # locked until it is closed
            yield

    def lines(self) -> list[Line]:
        """Return the lines; a torn last one is what the file of intent says.

        Raise AccountError without the ledger: the sum of the charges is unknown then.
        """
        content, torn = self._read()
        known, lines = _read.get(self.folder, (b"", []))
        if not content.startswith(known):  # it was replaced
            known = b""
            lines = []
        lines = [*lines, *map(parse_line, content[len(known) :].splitlines())]
        _read[self.folder] = (content, lines)
        return [*lines, *map(parse_line, torn.splitlines())]

    def charge(self, key: str, **about: Any) -> None:
        """Append a line on a reply's charge durably; raise OSError if the disk refuses it.

        `about` has the numbers that differ from NOTHING, and the names of the releases.
        """
        content, torn = self._read()
        self._write(len(content), torn)
        lines = self.lines()
        if lines and lines[-1]["key"] == key:  # the disk has refused to sync it before
            return
        end = len(content + torn)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "key": key, **NOTHING, **about}) + "\n"
        write_private(self.folder / INTENT, json.dumps([end, line]).encode())
        self._write(end, line.encode())

    def _read(self) -> tuple[bytes, bytes]:
        """Return the whole lines, and the one that a torn one was to be, or b""."""
        content: bytes = read_part(self.folder / FILE, lambda file: file.read())
        whole = content[: content.rfind(b"\n") + 1]
        if whole == content or not (self.folder / INTENT).exists():
            return whole, b""
        end, line = read_part(self.folder / INTENT, json.load)
        return whole, line.encode() if end == len(whole) else b""

    def _write(self, end: int, line: bytes) -> None:
        """Write a line, or nothing, after the whole ones, in place of a torn one."""
        descriptor = os.open(self.folder / FILE, os.O_WRONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(end)
            file.write(line)
            file.truncate()
            os.fsync(descriptor)

    # Kept replies ---------------------------------------------------------------------------------

    def find_reply(self, key: str) -> bytes:
        """Return the kept reply to a message with this key, b"" if it is missing or damaged."""
        return read_sealed(self.folder / REPLIES / key, "the account halts until it is resumed")[0]

    def keep_reply(self, key: str, content: bytes) -> None:
        """Keep a reply; drop all but the last ones of its kind, the word that its key begins with.

        Raise OSError if the disk refuses it.
        """
        path = self.folder / REPLIES / key
        make_folder(path.parent)
        write_sealed(path, content, b"")
        kind = key.partition("-")[0]
        others = {*path.parent.glob(f"{kind}-*")} - {path}  # the clock may have been set back
        for old in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - KEPT_REPLIES]:
            old.unlink()

    # Halts ----------------------------------------------------------------------------------------

    @property
    def is_halted(self) -> bool:
        """Whether charged work failed, or ended in between: its reply is not there."""
        keys = [line["key"] for line in self.lines()[-1:]]
        return any(key not in ("", RESUMED) and not self.find_reply(key) for key in keys)

    def resume(self) -> None:
        """Let a halted account work again; what was charged stays spent."""
        with self.lock():
            self.charge(RESUMED)

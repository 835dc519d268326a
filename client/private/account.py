"""Privacy accounts on a device: they belong to the data, and are opened by the data's owner.

An account lies in a folder of its own outside the data and outside the client's state folder. It is
found by the digest of the data's files, and by the file `fairbloom-account.toml` among them.

A line of its ledger is on the disk before any noise is drawn for it, so that a crash is spent. The
last replies are kept, and are sent again without a charge when the same work is asked for again. A
charge without a kept reply means that the work ended in between: the account halts then until its
owner resumes it, as each halt may reveal something about a row.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

from fairbloom.errors import ReportableError
from fairbloom.logs import log
from fairbloom.protocol.names import ACCOUNT_FILE, PRIVACY_LIMIT
from fairbloom.system.files import append_line, make_folder, sync_folder
from fairbloom.system.lock import open_locked
from fairbloom.system.versions import read_sealed, write_sealed
from fairbloom.tables import DataError
from fairbloom.tables.folders import files_in
from fairbloom.tasks import TASKS

from .budget import REPORTS, UNITS, Budget, epsilon_of

# The file of an account's folder that says what it allows.
ABOUT = "account.toml"

# The folder of accounts that an installation makes, beside that of the client's state.
SYSTEM_FOLDER = Path("/var/lib/fairbloom-accounts")

FILE = "ledger.jsonl"
REPLIES = "replies"

# Replies to each kind of message that are kept.
KEPT_REPLIES = 2

# The key of the line that an owner's resumption writes.
RESUMED = "resumed"

# The only sentence on an error from the first read of the data on.
FAILED = "this client could not do this work by its privacy account: its owner's log says why"

# The only task whose rows an account protects.
TASK = "csv"


class AccountError(ReportableError):
    """A refusal of an account that depends on no row, and costs nothing."""


@contextmanager
def one_sentence() -> Iterator[None]:
    """Raise every error with one constant sentence.

    A refusal by the account, which depends on no row, keeps its words.
    """
    try:
        yield
    except AccountError:
        raise
    except Exception as error:
        log.error("the privacy account's work failed: %s", error, exc_info=True)
        raise AccountError(FAILED) from None


@dataclass(frozen=True, kw_only=True)
class Account(Budget):
    """A budget for data, as the account's folder says it: written once, when it was opened.

    `data` is the digest of the data's files, `rows` that of their encoded rows, and `schema` that
    of the schema's text. The data's training and test rows, `train` and `test` many, are split by
    `seed` and `test_share`. `earlier` has the μ of earlier accounts of the folder, by number.
    """

    number: str
    opened: str
    client: str
    folder: str
    data: str
    rows: str
    schema: str
    seed: int
    test_share: float
    train: int
    test: int
    earlier: dict[str, float] = field(default_factory=dict)
    place: Path = Path()

    @classmethod
    def read(cls, place: Path) -> Self:
        """Return the account in a folder; raise AccountError if it cannot be read."""
        return cls(**read_part(place / ABOUT, tomllib.load), place=place)

    @property
    def ledger(self) -> Ledger:
        """What it has spent."""
        return Ledger(self.place, self.limits)

    @property
    def with_earlier(self) -> dict[str, float]:
        """The μ of this and all earlier accounts of the folder, by number."""
        return {**self.earlier, self.number: self.mu}

    @property
    def lifetime_epsilon(self) -> float:
        """ε of this and all earlier accounts of the folder: that of √Σμ²."""
        return epsilon_of(math.hypot(*self.with_earlier.values()), self.delta)


# Finding an account -------------------------------------------------------------------------------


def accounts_folder(limits: Mapping[str, Any]) -> Path:
    """Return the folder of accounts: the owner's, the installation's, or the user's."""
    if ledger := limits.get("ledger"):
        return Path(str(ledger)).expanduser()
    if SYSTEM_FOLDER.is_dir():
        return SYSTEM_FOLDER
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state, "fairbloom", "accounts").expanduser()


def find_account(node: Mapping[str, Any], data_dir: str) -> Account | None:
    """Return the account of a folder of data on a client with this node config, or None.

    Raise AccountError if there is one that cannot be used for these data, or none though the
    client's owner has set a budget.
    """
    limits = json.loads(str(node.get(PRIVACY_LIMIT) or "{}"))
    known = accounts_of(data_dir, limits) if data_dir else []
    if not known and limits:
        raise AccountError(
            "this device's owner has set a privacy budget (limits.privacy), and no account is open"
            " for its data: fairbloom client account open, on the device"
        )
    if not known:
        return None
    digest = digest_files(data_dir)
    for account in known:
        if account.data == digest:
            return account
    raise AccountError(
        "the files of these data are not those that their privacy account was opened for: put them"
        " back, or open an account for them (fairbloom client account open)"
    )


def accounts_of(data_dir: str, limits: Mapping[str, Any]) -> list[Account]:
    """Return the accounts that were opened for a folder of data, or elsewhere for equal data."""
    folder = folder_of(data_dir)
    abouts = accounts_folder(limits).glob(f"*/{ABOUT}")
    accounts = {each.number: each for each in [Account.read(about.parent) for about in abouts]}
    named = ""
    if os.path.lexists(marker := folder / ACCOUNT_FILE):
        last = Account.read(Path(read_part(marker, tomllib.load).get("place", "")))
        accounts[last.number] = last
        named = last.number
    try:
        digest = digest_files(data_dir) if accounts else ""
    except DataError:  # without a table, these are no rows of an account elsewhere
        digest = ""
    return [
        each
        for each in sorted(accounts.values(), key=lambda account: account.opened)
        if each.number == named or each.folder == str(folder) or each.data == digest
    ]


def read_part(path: Path, parse: Callable[[BinaryIO], Any]) -> Any:
    """Return what an account's file says; raise AccountError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return parse(file)
    except (OSError, ValueError) as error:
        raise AccountError(
            f"{path} of a privacy account cannot be read ({error}): restore it",
            "the privacy account of these data is not there: its owner must restore its folder",
        ) from error


def folder_of(data_dir: str) -> Path:
    """Return the folder of data, which may be a single file."""
    path = Path(data_dir).expanduser().resolve()
    return path if path.is_dir() else path.parent


def digest_files(data_dir: str) -> str:
    """Return the SHA-256 of the tables of a folder, whatever their names are."""
    paths = chain(*files_in(data_dir, TASKS[TASK].reads).values())
    return _digest(tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=4)  # a client asks with each message
def _digest(files: Sequence[tuple[Path, int]]) -> str:
    each = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path, _ in files)
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


# The ledger ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ledger:
    """The lines and the kept replies in an account's folder; its caller holds the account's lock.

    `limits` has the most units and reports.
    """

    folder: Path
    limits: Mapping[str, int]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the account: devices with equal data on one machine share it."""
        try:
            descriptor = open_locked(self.folder / "lock", wait=True)
        except OSError as error:
            raise AccountError(
                f"the privacy account's folder cannot be written ({error.strerror}): its owner"
                " must make it writable"
            ) from error
        with os.fdopen(descriptor):  # locked until it is closed
            yield

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines; a torn one has the amounts that it begins with, or all there are.

        Raise AccountError without the file: nobody knows then what is spent.
        """
        for line in filter(bytes.strip, read_part(self.folder / FILE, list)):
            try:
                read = json.loads(line)
                yield {**read, UNITS: int(read[UNITS]), REPORTS: int(read[REPORTS])}
            except (ValueError, KeyError, TypeError):
                begun = re.match(rb'\{"units": (\d+), "reports": (\d+),', line)
                amounts = map(int, begun.groups()) if begun else self.limits.values()
                yield {**dict(zip((UNITS, REPORTS), amounts, strict=True)), "torn": True}

    def left(self) -> dict[str, int]:
        """Return the units and the reports that are left."""
        lines = [*self.lines()]
        return {
            kind: max(0, most - sum(line[kind] for line in lines))
            for kind, most in self.limits.items()
        }

    def charge(self, units: int, reports: int, key: str, run: int, released: str) -> None:
        """Append a line durably; raise OSError if the disk refuses it."""
        self._append(
            {
                UNITS: units,
                REPORTS: reports,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "key": key,
                "run": run,
                "released": released,
            }
        )

    def _append(self, line: Mapping[str, Any]) -> None:
        read_part(self.folder / FILE, list)  # a ledger that is gone is not begun anew
        # the amounts come first, so that they are known of a torn line, too
        append_line(self.folder / FILE, json.dumps(line).encode())
        sync_folder(self.folder)

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
        last = [*self.lines()][-1:]
        return bool(last) and (
            "torn" in last[0] or (last[0]["key"] != RESUMED and not self.find_reply(last[0]["key"]))
        )

    def resume(self) -> None:
        """Let a halted account work again; what was charged stays spent."""
        with self.lock():
            self._append({UNITS: 0, REPORTS: 0, "key": RESUMED})

"""Privacy accounts on a device: they belong to the data, and are opened by the data's owner.

An account lies in a folder of its own outside the data and outside the client's state folder. It is
found by the digests of the data's files, by its rows as its own schema reads them, and by the file
`fairbloom-account.toml` among the data. The run, which the server chooses, has no part in it.

What the owner says now is in force at once if it is stricter than what the account was opened for.
Work that is asked for again gets its kept reply, without a charge. A charge without a kept reply
means that the work ended in between: the account halts then until its owner resumes it, as each
halt may reveal something about a row.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import TypeAdapter

from fairbloom.logs import log, log_once
from fairbloom.protocol.accounts import AccountStatus
from fairbloom.protocol.names import ACCOUNT_FILE, PRIVACY_LIMIT
from fairbloom.system.files import expand_home
from fairbloom.tables import DataError
from fairbloom.tables.folders import files_in, place_of
from fairbloom.tasks import TASKS
from fairbloom.tasks.permit import (
    ABOUT,
    TASK,
    account_folders,
    digest_tables,
    find_markers,
)

from .budget import REPORTS, UNITS, Budget, epsilon_of
from .ledger import DAMAGED, LOST, SHARE, AccountError, KeptRows, Ledger, read_part

# The format of an account's file.
FORMAT = 2

# The only sentence on an error from the first read of the data on.
FAILED = "this client could not do this work by its privacy account: its owner's log says why"

# A sum of shares of μ² may pass it by its rounding; `mu_of` is lower by this, relatively.
ROUNDING = 1e-9


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
class Account(Budget, KeptRows):
    """A budget for data, as the account's folder says it: written once, when it was opened.

    `data` has the digests of the data's files, of which the rows were split by `seed` and
    `test_share`. `earlier` has the μ of earlier accounts of the folder or the rows, by number.
    `exact` replies without noise had left the device before. `said` is what its owner says now, the
    table `limits.privacy`.
    """

    format: int = FORMAT
    number: str
    opened: str
    client: str
    folder: str
    data: list[str]
    seed: int
    test_share: float
    earlier: dict[str, float] = field(default_factory=dict)
    exact: int = 0
    said: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the account in a file; raise AccountError if it cannot be read.

        It lies in the account's folder, and once more among the data.
        """
        about = read_part(path, tomllib.load)
        if about.get("format") != FORMAT:
            raise AccountError(
                f"{path} is a privacy account's of format {about.get('format', 'none')}, and this"
                f" version reads format {FORMAT}: read it by the version that wrote it",
                LOST,
            )
        account: Self = read_part(path, lambda _: TypeAdapter(cls).validate_python(about))
        return account

    def encode(self) -> bytes:
        """Return the content of such a file."""
        about = {key: value for key, value in asdict(self).items() if key != "said"}
        return tomli_w.dumps({**about, "place": str(self.place)}).encode()

    @property
    def ledger(self) -> Ledger:
        """What it has spent."""
        return Ledger(self.place)

    @cached_property
    def now(self) -> Budget:
        """What the owner says now, for the account's steps and tests."""
        epsilon = float(self.said.get("epsilon", self.epsilon))
        return Budget(epsilon, float(self.said.get("delta", self.delta)), self.steps, self.tests)

    @property
    def in_force(self) -> Budget:
        """The stricter budget: that of the opening, or the owner's of today."""
        return min(self, self.now, key=lambda budget: budget.mu)

    @property
    def limits(self) -> dict[str, int]:
        """The most units and test reports in force; the unit of the opening stays."""
        return {UNITS: self.units_within(self.in_force.mu), REPORTS: self.tests}

    def spent(self, what: str, run: int | None = None) -> float:
        """Return how much of a line's numbers is spent in all, or by a run."""
        lines = [each for each in self.ledger.lines() if run in (None, each["run"])]
        return float(sum(each[what] for each in lines))

    def left(self, run: int | None = None) -> dict[str, int]:
        """Return the units and reports that are left, of the units those that a run may have.

        Nothing is left if more is spent than the owner allows now.
        """
        limits = self.limits
        units = limits[UNITS] - self.spent(UNITS)
        if units < 0 or self.spent(SHARE) > self.in_force.mu**2 * (1.0 + ROUNDING):
            return dict.fromkeys(limits, 0)
        if run is not None:
            cap = self.said.get("units-a-run", self.units)
            units = min(units, cap - self.spent(UNITS, run))
        left = {UNITS: units, REPORTS: self.tests - self.spent(REPORTS)}
        return {kind: int(max(0, amount)) for kind, amount in left.items()}

    @cached_property  # the charge of a report must not change its noise
    def test_sigma(self) -> float:
        """σ of the next test report, in its sensitivity: all reports left share the budget left."""
        room = self.in_force.mu**2 - self.spent(SHARE)
        reports = self.left()[REPORTS]
        return math.sqrt(reports / room) if reports else math.inf

    def status(self, left: Mapping[str, int], rows: int) -> AccountStatus:
        """Return the status for the server, with the budget in force."""
        about = super().status(left, rows)
        return about._replace(epsilon=self.in_force.epsilon, delta=self.in_force.delta)

    @property
    def epsilon_spent(self) -> float:
        """ε of the charges so far: of rows of training or of tests, the larger one."""
        tests = self.units * self.spent(SHARE) / self.mu**2
        units = min(float(self.units), max(self.spent(UNITS), tests))
        return self.epsilon_after(units) if units else 0.0

    @property
    def warnings(self) -> list[str]:
        """Sentences for its owner: its state, and settings without an effect."""
        lines: list[str] = []
        for key, value in (("steps", self.steps), ("tests", self.tests)):
            if self.said.get(key, value) != value:
                lines.append(
                    f"limits.privacy.{key} = {self.said[key]}: the account was opened with {value},"
                    " and keeps it."
                )
        if self.now.mu > self.mu:
            lines.append(
                f"limits.privacy allows epsilon {self.now.epsilon:g}, delta {self.now.delta:.2g},"
                " which is looser than the account: it goes on as it was opened."
            )
        if DAMAGED in self.ledger.lines():
            lines.append(f"The ledger in {self.place} is damaged, so all of it counts as spent.")
        if self.ledger.is_halted:
            lines.append(
                "It is halted, as work failed after a charge: fairbloom client account resume."
            )
        return lines

    @property
    def with_earlier(self) -> dict[str, float]:
        """The μ of this and all earlier accounts of the folder, by number."""
        return {**self.earlier, self.number: self.mu}

    @property
    def lifetime_epsilon(self) -> float:
        """ε of this and all earlier accounts of the folder: that of √Σμ²."""
        return epsilon_of(math.hypot(*self.with_earlier.values()), self.delta)


@contextmanager
def _by_itself() -> Iterator[None]:
    """Report an account that cannot be read: others are not touched."""
    try:
        yield
    except AccountError as error:
        log_once("%s", error)


# Finding an account -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """The accounts that can be read here, oldest first, and a client's folder of data.

    `digests` has one for each file of the data; `markers` are the accounts that are named there.
    """

    node: Mapping[str, Any]
    data_dir: str
    accounts: list[Account]
    digests: list[str]
    markers: list[Account]

    @classmethod
    def of(cls, node: Mapping[str, Any], data_dir: str) -> Self:
        """Return the accounts that concern a client's data.

        An account that cannot be read is reported, and has no part in the others. Raise
        AccountError if the file among the data cannot be read.
        """
        own_place = place_of(data_dir, str(node.get("name", "")))
        files = _files_in(own_place)
        markers = find_markers([folder_of(node, data_dir) / ACCOUNT_FILE, *files])
        named = [Account.read(marker) for marker in markers]
        found = dict[str, Account]()
        for place in [*account_folders(limits_in(node)), *(each.place for each in named)]:
            with _by_itself():
                account = Account.read(place / ABOUT)
                if account.number == place.name:  # else, a copy that someone has kept
                    found[account.number] = replace(account, place=place)
        accounts = sorted(found.values(), key=lambda account: account.opened)
        return cls(node, data_dir, accounts, digest_tables(files), named)

    @property
    def lost(self) -> list[Account]:
        """The accounts that are named among the data, and are not there."""
        there = {account.number for account in self.accounts}
        return [marker for marker in self.markers if marker.number not in there]

    @property
    def of_folder(self) -> list[Account]:
        """The accounts that were opened for this folder, or are named in it."""
        named = {marker.number for marker in self.markers}
        folder = str(folder_of(self.node, self.data_dir))
        return [each for each in self.accounts if each.number in named or each.folder == folder]

    @property
    def has_account(self) -> bool:
        """Whether an account was ever opened for the folder, or for its rows."""
        return bool(self.markers or self.of_folder or self.of_files or self.of_rows)

    @property
    def of_files(self) -> list[Account]:
        """The accounts of the same files."""
        return [each for each in self.accounts if each.data == self.digests]

    @property
    def of_rows(self) -> list[Account]:
        """The accounts that have these rows, each as its own schema reads them."""
        found = list[Account]()
        if self.accounts:
            from .split import has_rows  # imported late: it needs PyTorch

            for each in self.accounts:
                with _by_itself():
                    if has_rows(each, self.node, self.data_dir, self.digests):
                        found.append(each)
        return found


def find_account(node: Mapping[str, Any], data_dir: str) -> Account | None:
    """Return the account of a folder of data on a client with this node config, or None.

    Raise AccountError if there is one that cannot be used for these data, or none though the
    client's owner has set a budget.
    """
    limits = limits_in(node)
    known = Known.of(node, data_dir) if data_dir else None
    if known is not None and known.lost:
        raise AccountError(
            f"the privacy account {known.lost[0].number} of these data is not there: restore its"
            " folder, or let fairbloom client account open count it as spent",
            LOST,
        )
    same = () if known is None else known.of_files or known.of_rows
    if same:
        return replace(same[-1], said=limits)
    if known is not None and known.of_folder:
        raise AccountError(
            "the files of these data are not those that their privacy account was opened for: put"
            " them back, or open an account for them (fairbloom client account open)"
        )
    if limits and known is not None and not known.digests:
        raise AccountError(
            "this device's owner has set a privacy budget (limits.privacy), and there is no table"
            " in its data-dir: bring the data back there, or correct data-dir"
        )
    if limits:
        raise AccountError(
            "this device's owner has set a privacy budget (limits.privacy), and no account is open"
            " for its data: fairbloom client account open, on the device"
        )
    return None


def limits_in(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner's table `limits.privacy` in a node config, {} without one."""
    limits: dict[str, Any] = json.loads(str(node.get(PRIVACY_LIMIT) or "{}"))
    return limits


def folder_of(node: Mapping[str, Any], data_dir: str) -> Path:
    """Return the folder of a client's own data, which may be one file next to others.

    A folder of several clients has one of each by name.
    """
    place = place_of(data_dir, str(node.get("name", "")))
    path = expand_home(place).resolve()
    return path if path.is_dir() else path.parent


def _files_in(data_dir: str) -> list[Path]:
    """Return the tables of a folder; without one, these are no rows of an account elsewhere."""
    try:
        return [*chain(*files_in(data_dir, TASKS[TASK].reads).values())]
    except DataError:
        return []

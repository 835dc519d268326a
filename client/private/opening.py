"""Opening an account, and what its owner is shown of it."""

import json
import secrets
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.accounts import LOSS_BOUND
from fairbloom.protocol.names import ACCOUNT_FILE, CLIENT, PRIVACY, PRIVACY_LIMIT
from fairbloom.system.files import make_folder, write_private, write_public
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.versions import write_sealed
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks.clients import own_columns
from fairbloom.tasks.permit import ABOUT, accounts_folder
from fairbloom.text import plural

from ..guard.log_files import read_entries
from .account import Account, Known, find_account, folder_of
from .budget import LOSS_UNITS, REPORTS, STEP_UNITS, UNITS, check_budget
from .ledger import FILE as LEDGER, REPLIES, AccountError
from .mechanism import TEST_SENSITIVITY
from .rows import split_rows
from .split import FILE as ROWS, digest_rows, read_rows, reads_alike

# Rows from which the noise of a step is small next to the steps of other clients, as a rule.
FEW_ROWS = 300


def open_account(
    node: Mapping[str, Any],
    limits: Mapping[str, Any],
    schema: str,
    *,
    test_share: float,
    seed: int,
) -> Account:
    """Open an account for a client's data; raise FairbloomError if there is one already.

    `node` is the client's node config, `limits` the owner's table `limits.privacy`, and `schema`
    the text that the rows are read with from now on.
    """
    data_dir = str(node.get("data-dir", ""))
    if not data_dir:
        raise FairbloomError("the client has no data-dir, so it has no rows: set it in owner.toml")
    if not 0.0 < test_share < 1.0:
        raise FairbloomError(f"--test-share {test_share}: it must be between 0 and 1")
    check_schema(schema)
    client, splits = read_rows(node, data_dir, schema)
    train, test = split_rows(splits, seed, test_share)
    budget = check_budget("limits.privacy", limits, len(train) + len(test))
    accounts = accounts_folder(limits)
    try:
        make_folder(accounts)
    except OSError as error:
        raise FairbloomError(
            f"{accounts} cannot be made ({error.strerror}): set limits.privacy.ledger to a folder"
            " that this account of the system may write"
        ) from error
    with exclusive_lock(accounts / "lock", seconds=60.0):
        known = Known.of({**node, PRIVACY_LIMIT: json.dumps(limits)}, data_dir)
        same = {each.number: each for each in [*known.of_files, *known.of_rows]}
        for each in same.values():
            if reads_alike(each.schema, schema):
                raise FairbloomError(
                    f"account {each.number} is for these data: fairbloom client account show says"
                    " what is left of it"
                )
        number = secrets.token_hex(4)
        earlier = dict[str, float]()
        for each in [*known.lost, *known.of_folder, *same.values()]:
            earlier |= each.with_earlier
        exact = count_exact(Path(str(node.get("state-dir", ""))))
        account = Account(
            number=number,
            opened=datetime.now(UTC).isoformat(),
            client=client,
            folder=str(folder_of(node, data_dir)),
            data=known.digests,
            schema=schema,
            salt=secrets.token_hex(16),
            epsilon=budget.epsilon,
            delta=budget.delta,
            steps=budget.steps,
            tests=budget.tests,
            seed=seed,
            test_share=test_share,
            train=len(train),
            test=len(test),
            earlier=earlier,
            exact=exact,
            place=accounts.resolve() / number,
            said=limits,
        )
        sides = [sorted(digest_rows(each, account.salt)) for each in (train, test)]
        write_account(account, b"".join(chain(*sides)))
        return account


def count_exact(state_dir: Path) -> int:
    """Return how many replies to messages with a model left a device without an account."""
    try:
        entries = [*read_entries(state_dir)]
    except FairbloomError:  # it has no log yet
        entries = []
    count = 0
    for entry in entries:
        # a handler may have a name: train.mine
        has_model = entry["asked"].partition(".")[0] in ("train", "evaluate")
        if has_model and "refused" not in entry and PRIVACY not in entry["sent"].get(CLIENT, ()):
            count += entry.get("times", 1)
    return count


def check_schema(text: str) -> None:
    """Raise FairbloomError unless a schema reads each row by itself, and into classes."""
    schema = parse_schema(text)
    if schema.unit or schema.groups:
        key = "unit" if schema.unit else "groups"
        raise FairbloomError(
            f"the schema has {key}, and a privacy account protects rows, not persons or groups of"
            f" them: leave out {key}"
        )
    own = own_columns(schema)
    if own:
        raise FairbloomError(
            f"the schema states no center and scale for {own[0]}, and means of the rows would"
            " leave with the model: write both into the schema"
        )
    if not schema.predicted.categories:
        raise FairbloomError(
            f"the schema's target, {schema.target}, is a quantity, and a privacy account trains"
            " classes only: choose a target with categories"
        )


def write_account(account: Account, sides: bytes) -> None:
    """Write a new account into its folder, and the file among the data that names it."""
    try:
        make_folder(account.place)
        with account.ledger.lock():
            write_private(account.place / LEDGER, b"")
            write_sealed(account.place / ROWS, sides, b"")
            write_private(account.place / ABOUT, account.encode())
            write_public(Path(account.folder, ACCOUNT_FILE), account.encode())
    except (OSError, AccountError) as error:
        shutil.rmtree(account.place, ignore_errors=True)
        raise FairbloomError(
            f"account {account.number} cannot be opened: {error}. Let this account of the system"
            f" write into {account.place.parent}, and into {account.folder}, where the account's"
            " name lies"
        ) from error


def close_account(node: Mapping[str, Any]) -> Account:
    """Remove an account of which nothing is spent, and return it; else raise FairbloomError."""
    account = known_account(node)
    data_dir = str(node["data-dir"])
    earlier = {each.number: each for each in Known.of(node, data_dir).accounts}
    # the data may have moved, and others with an account of their own may lie in their place
    markers = [place / ACCOUNT_FILE for place in {Path(account.folder), folder_of(node, data_dir)}]
    named = [
        each for each in markers if each.exists() and Account.read(each).number == account.number
    ]
    with account.ledger.lock():
        is_charged = (account.place / LEDGER).stat().st_size or [
            *account.place.glob(f"{REPLIES}/*")
        ]
        if is_charged or not earlier.keys() >= account.earlier.keys():
            raise FairbloomError(
                f"account {account.number} has been charged, or counts one that is lost, so it"
                " stays: fairbloom client account show says what is left of it"
            )
        shutil.rmtree(account.place)
        # the file among the data is the last to go; with earlier accounts, it names the last one
        for marker in named:
            if account.earlier:
                write_public(marker, earlier[[*account.earlier][-1]].encode())
            else:
                marker.unlink()
    return account


def known_account(node: Mapping[str, Any]) -> Account:
    """Return the account of a client's data; raise FairbloomError without one."""
    account = find_account(node, str(node.get("data-dir", "")))
    if account is None:
        raise FairbloomError("no account is open for these data: fairbloom client account open")
    return account


def describe_account(account: Account) -> list[str]:
    """Return lines on an account's budget, and on its charges."""
    left = account.left()
    limits = account.limits
    rows = account.train
    next_report = ""
    if left[REPORTS]:
        next_report = f": noise of the next one {TEST_SENSITIVITY * account.test_sigma:.2g} rows"
    lines = [
        f"account {account.number} of {account.folder}, opened {account.opened[:10]}:"
        f" {rows} training rows, {account.test} test rows, split by seed {account.seed}",
        f"epsilon {account.epsilon:g}, delta {account.delta:.2g}, if a row is blanked;"
        f" {account.replacement_epsilon:.3g} if it is replaced by another",
        f"{account.steps} training steps with as many losses: noise of a step {account.sigma:.4g}"
        f" times a row's largest gradient; of a reported loss"
        f" {account.sigma_of(LOSS_UNITS) * LOSS_BOUND / rows:.2g} times that of guessing",
        f"{account.tests} test {plural(account.tests, 'report', 'reports')}{next_report}",
        f"left: {left[UNITS]} of {limits[UNITS]} units (a step has {STEP_UNITS}, a loss"
        f" {LOSS_UNITS}), {left[REPORTS]} of {account.tests} test reports; epsilon of what is"
        f" spent: {account.epsilon_spent:.3g}",
        _describe_life(account),
    ]
    if limits[UNITS] < account.units:
        lines.append(
            f"limits.privacy is stricter now, and in force: epsilon {account.now.epsilon:g}, delta"
            f" {account.now.delta:.2g}, {limits[UNITS]} of {account.units} units"
        )
    if account.place.is_relative_to(gettempdir()):
        lines.append(
            f"{account.place} is in a folder for temporary files, and an account that is lost"
            " counts as spent: set limits.privacy.ledger to a folder that stays"
        )
    if rows < FEW_ROWS:
        lines.append(
            f"With {rows} rows, the noise of a step may be larger than what the rows teach:"
            " training alone, without federation, may serve better."
        )
    return [*lines, *account.warnings]


def _describe_life(account: Account) -> str:
    """Return what all accounts of the data allow, or that no number bounds what has left."""
    if account.exact:
        return (
            f"{plural(account.exact, '1 reply', f'{account.exact} replies')} without noise had left"
            " this device before: no epsilon holds for the rows that were in them"
        )
    accounts = len(account.with_earlier)
    return (
        f"lifetime epsilon of {accounts} {plural(accounts, 'account', 'accounts')} of these data:"
        f" {account.lifetime_epsilon:.3g}"
    )

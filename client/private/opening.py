"""Opening an account, and what its owner is shown of it."""

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import ACCOUNT_FILE, DEPLOYED, FILES, ONE_CLIENT
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.files import make_folder, write_private, write_public
from fairbloom.system.lock import exclusive_lock
from fairbloom.tables.folders import place_of
from fairbloom.tables.schema import parse_schema, with_files
from fairbloom.tasks import load_task
from fairbloom.tasks.clients import own_columns

from ..guard.accepted_schemas import digest_of
from ..local import find_client_key
from .account import (
    ABOUT,
    FILE,
    TASK,
    Account,
    accounts_folder,
    accounts_of,
    digest_files,
    find_account,
    folder_of,
)
from .budget import LOSS_UNITS, REPORTS, STEP_UNITS, UNITS, Budget
from .mechanism import TEST_SENSITIVITY
from .rows import LOSS_BOUND, digest_rows, split_rows

# The largest δ unless the owner sets one.
DELTA = 1e-5

# Rows from which the noise of a step is small beside the steps of other clients, as a rule.
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
    the text by which the rows are read from now on.
    """
    data_dir = str(node.get("data-dir", ""))
    if not data_dir:
        raise FairbloomError("the client has no data-dir, so it has no rows: set it in owner.toml")
    if not 0.0 < test_share < 1.0:
        raise FairbloomError(f"--test-share {test_share}: it must be between 0 and 1")
    check_schema(schema)
    name = str(node.get("name", ""))
    text = with_files(schema, json.loads(str(node.get(FILES) or "{}")), name)
    about = {"task": TASK, "data-dir": place_of(data_dir, name), "schema": text, "seed": seed}
    settings = RunSettings.of({**about, DEPLOYED: True, ONE_CLIENT: bool(name)})
    task = load_task(settings)
    client = find_client_key(settings, task, None, name)
    splits = task.splits(client)
    train, test = split_rows(splits, seed, test_share)
    count = len(train) + len(test)
    most = 1.0 / (10 * count)
    delta = float(limits.get("delta", min(DELTA, most)))
    if not delta <= most:
        raise FairbloomError(
            f"limits.privacy.delta = {delta}: at most 1/(10 n) = {most:.2g} for {count} rows"
        )
    try:
        given = {key: int(limits[key]) for key in ("steps", "tests") if key in limits}
        budget = Budget(float(limits["epsilon"]), delta, **given)
        _ = budget.mu
    except ValueError as error:
        raise FairbloomError(f"limits.privacy has {error}") from error
    accounts = accounts_folder(limits)
    make_folder(accounts)
    with exclusive_lock(accounts / "lock", seconds=60.0):
        data = digest_files(data_dir)
        known = accounts_of(data_dir, limits)
        if same := [each.number for each in known if each.data == data]:
            raise FairbloomError(
                f"account {same[0]} is for these data: fairbloom client account show says what is"
                " left of it"
            )
        account = Account(
            number=secrets.token_hex(4),
            opened=datetime.now(UTC).isoformat(timespec="seconds"),
            client=client,
            folder=str(folder_of(data_dir)),
            data=data,
            rows=digest_rows(splits),
            schema=digest_of(schema),
            epsilon=budget.epsilon,
            delta=delta,
            steps=budget.steps,
            tests=budget.tests,
            seed=seed,
            test_share=test_share,
            train=len(train),
            test=len(test),
            earlier={number: mu for each in known for number, mu in each.with_earlier.items()},
        )
        return write_account(account, accounts)


def check_schema(text: str) -> None:
    """Raise FairbloomError unless a schema reads each row by itself, and into classes."""
    schema = parse_schema(text)
    if schema.unit or schema.groups:
        key = "unit" if schema.unit else "groups"
        raise FairbloomError(
            f"the schema has {key}, and a privacy account protects rows, not persons or groups of"
            f" them: leave out {key}"
        )
    if own := own_columns(schema):
        raise FairbloomError(
            f"the schema states no center and scale for {own[0]}, and means of the rows would"
            " leave with the model: write both into the schema"
        )
    if not schema.predicted.categories:
        raise FairbloomError(
            f"the schema's target, {schema.target}, is a quantity, and a privacy account trains"
            " classes only: choose a target with categories"
        )


def write_account(account: Account, accounts: Path) -> Account:
    """Write a new account into its folder, and the file among the data that names it."""
    place = accounts / account.number
    about = {key: value for key, value in asdict(account).items() if key != "place"}
    marker = {
        "number": account.number,
        "place": str(place.resolve()),
        "data": account.data,
        "earlier": account.earlier,
    }
    make_folder(place)
    write_private(place / FILE, b"")
    write_private(place / ABOUT, tomli_w.dumps(about).encode())
    try:
        write_public(Path(account.folder, ACCOUNT_FILE), tomli_w.dumps(marker).encode())
    except OSError as error:
        shutil.rmtree(place)
        raise FairbloomError(
            f"{account.folder} cannot be written ({error.strerror}): an account's name lies among"
            " its data: let this account of the system write there"
        ) from error
    return Account.read(place)


def known_account(node: Mapping[str, Any]) -> Account:
    """Return the account of a client's data; raise FairbloomError if there is none."""
    account = find_account(node, str(node.get("data-dir", "")))
    if account is None:
        raise FairbloomError("no account is open for these data: fairbloom client account open")
    return account


def describe_account(account: Account) -> list[str]:
    """Return lines on what an account allows, and what is left of it."""
    left = account.ledger.left()
    rows = account.train
    accounts = len(account.with_earlier)
    lines = [
        f"account {account.number} of {account.folder}, opened {account.opened[:10]}:"
        f" {rows} training rows, {account.test} test rows, split by seed {account.seed}",
        f"epsilon {account.epsilon:g}, delta {account.delta:.2g}, if a row is blanked;"
        f" {account.replacement_epsilon:.3g} if it is replaced by another",
        f"{account.steps} training steps with as many losses: noise of a step {account.sigma:.4g}"
        f" times a row's largest gradient; of a reported loss"
        f" {account.sigma_of(LOSS_UNITS) * LOSS_BOUND / rows:.2g} times that of guessing",
        f"{account.tests} test report{'s' * (account.tests != 1)}: noise of"
        f" {TEST_SENSITIVITY * account.test_sigma:.2g} rows",
        f"left: {left[UNITS]} of {account.units} units (a step has {STEP_UNITS}, a loss"
        f" {LOSS_UNITS}), {left[REPORTS]} of {account.tests} test reports",
        f"lifetime epsilon of {accounts} account{'s' * (accounts != 1)} of this folder:"
        f" {account.lifetime_epsilon:.3g}",
    ]
    if rows < FEW_ROWS:
        lines.append(
            f"With {rows} rows, the noise of a step may be larger than what the rows teach:"
            " training alone, without federation, may serve better."
        )
    if account.ledger.is_halted:
        lines.append("It is halted, as work failed after a charge: fairbloom client account resume")
    return lines

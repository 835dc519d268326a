"""Data with a privacy account: how they are known, and the permit to read them.

Rows are read by `load_task`, which refuses data with an account without a permit. The account's own
work makes one, and so do the commands of the data's owner: no setting, variable or message does.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.protocol.names import ACCOUNT_FILE
from fairbloom.system.files import expand_home

from .datasets.store import digest_of

# The only task that an account is for.
TASK = "csv"

# The file with the budget in an account's folder.
ABOUT = "account.toml"

# The folder of accounts that an installation makes, next to that of the client's state.
SYSTEM_FOLDER = Path("/var/lib/fairbloom-accounts")

_PERMITTED = ContextVar("_PERMITTED", default=False)


@contextmanager
def permit_reading() -> Iterator[None]:
    """Let data with a privacy account be read in the block."""
    token = _PERMITTED.set(True)
    try:
        yield
    finally:
        _PERMITTED.reset(token)


def check_permit(files: Sequence[Path]) -> None:
    """Raise ReportableError if one of these files has a privacy account, unless it is permitted.

    An account is known by its file among the data, or by the digest of the data's files.
    """
    if _PERMITTED.get() or not files:
        return
    known = set[str]()
    for place in account_folders({}):
        # without one that cannot be read: others are not touched
        with suppress(OSError, ValueError, KeyError, TypeError):
            known |= {*tomllib.loads((place / ABOUT).read_text())["data"]}
    if find_markers(files) or (known and not known.isdisjoint(digest_tables(files))):
        fault = (
            "have a privacy account: only this device's Fairbloom client works with it. Without its"
            " noise, only their owner reads them, by fairbloom data, predict or evaluate"
        )
        raise ReportableError(f"the data in {files[0].parent} {fault}", f"these data {fault}")


def find_markers(files: Sequence[Path]) -> list[Path]:
    """Return the accounts' files next to tables, or next to the targets of links.

    A folder's account is of the tables in its subfolders, too.
    """
    parents = {file.parent for file in files}
    parents |= {file.resolve().parent for file in files if file.is_symlink()}
    folders = {folder.resolve() for folder in parents}
    places = sorted({*folders, *(folder.parent for folder in folders)})
    return [place / ACCOUNT_FILE for place in places if os.path.lexists(place / ACCOUNT_FILE)]


def accounts_folder(limits: Mapping[str, Any]) -> Path:
    """Return the folder of accounts: the owner's, the installation's, or the user's.

    Raise FairbloomError if it is that of a user without a home.
    """
    remedy = "set limits.privacy.ledger to a folder that stays"
    ledger = limits.get("ledger")
    if ledger:
        return expand_home(str(ledger), remedy)
    if SYSTEM_FOLDER.is_dir():
        return SYSTEM_FOLDER
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return expand_home(Path(state, "fairbloom", "accounts"), remedy)


def account_folders(limits: Mapping[str, Any]) -> list[Path]:
    """Return the folder of each account in the folder of accounts.

    A user without a home has no accounts there, unless `limits`, an owner's, allow one: then they
    must be found, and FairbloomError is raised.
    """
    try:
        folder = accounts_folder(limits)
    except FairbloomError:
        if limits:
            raise
        return []
    return sorted(about.parent for about in folder.glob(f"*/{ABOUT}"))


def digest_tables(files: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of each file, sorted: their names have no part in it."""
    return sorted(digest_of(file, "sha256") for file in files)

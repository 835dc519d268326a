"""The rows of an account: they are known whatever their order is, and each stays on its side.

When an account is opened, each row is on the side of training or of tests from then on. The
account's folder keeps a salted digest of each row, of training rows first.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast

import numpy as np
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import DEPLOYED, FILES, ONE_CLIENT
from fairbloom.protocol.settings import RunSettings
from fairbloom.system.versions import read_sealed
from fairbloom.tables.folders import place_of
from fairbloom.tables.schema import SchemaError, parse_schema, with_files
from fairbloom.tasks import Splits, load_task
from fairbloom.tasks.permit import TASK, permit_reading
from fairbloom.tasks.task import AnyExamples

from ..local import find_client_key
from .ledger import LOST, AccountError, KeptRows
from .rows import all_rows, split_at

# The file of the digests, and their size in bytes.
FILE = "rows"
DIGEST_BYTES = 32


def settings_of_rows(node: Mapping[str, Any], data_dir: str, schema: str) -> RunSettings:
    """Return the settings that a client's rows are read with, whatever a run's settings are."""
    name = str(node.get("name", ""))
    files = json.loads(str(node.get(FILES) or "{}"))
    return RunSettings.of(
        {
            "task": TASK,
            "data-dir": place_of(data_dir, name),
            "schema": with_files(schema, files, name),
            DEPLOYED: True,
            ONE_CLIENT: bool(name),
        }
    )


def read_rows(node: Mapping[str, Any], data_dir: str, schema: str) -> tuple[str, Splits]:
    """Return a client's key and its rows as a schema reads them."""
    settings = settings_of_rows(node, data_dir, schema)
    with permit_reading():
        task = load_task(settings)
        client = find_client_key(settings, task, None, str(node.get("name", "")))
        return client, task.splits(client)


def reads_alike(schema: str, other: str) -> bool:
    """Return whether two schemas read rows in the same way: they differ in comments at most."""
    try:
        # not by ==, which takes the columns in any order
        return repr(parse_schema(schema)) == repr(parse_schema(other))
    except SchemaError:
        return False


def digest_rows(examples: AnyExamples, salt: str) -> list[bytes]:
    """Return the salted SHA-256 of each encoded row."""
    inputs, targets = examples[slice(0, None)]
    rows = zip(cast(Tensor, inputs).numpy(), targets.numpy(), strict=True)
    start = salt.encode()
    return [sha256(start + row.tobytes() + target.tobytes()).digest() for row, target in rows]


def read_sides(account: KeptRows) -> list[bytes]:
    """Return the digests in an account's folder, of training rows first.

    Raise AccountError if they cannot be read.
    """
    content, _ = read_sealed(account.place / FILE, "the account needs it")
    if len(content) != DIGEST_BYTES * (account.train + account.test):
        raise AccountError(
            f"{account.place / FILE} of a privacy account cannot be read: restore it",
            LOST,
        )
    return [content[start : start + DIGEST_BYTES] for start in range(0, len(content), DIGEST_BYTES)]


def has_rows(
    account: KeptRows, node: Mapping[str, Any], data_dir: str, digests: Sequence[str]
) -> bool:
    """Return whether the files with these digests have an account's rows, by its own schema."""
    about = (str(node.get("name", "")), str(node.get(FILES) or ""))
    try:
        found = _count_rows(about, data_dir, tuple(digests), account.schema, account.salt)
    except FairbloomError:  # the schema does not read them
        return False
    return found == Counter(read_sides(account))


@lru_cache(maxsize=16)  # a client asks with each message
def _count_rows(
    about: tuple[str, str], data_dir: str, digests: tuple[str, ...], schema: str, salt: str
) -> Counter[bytes]:
    name, files = about
    _, splits = read_rows({"name": name, FILES: files}, data_dir, schema)
    return Counter(digest_rows(all_rows(splits), salt))


def split_by(account: KeptRows, splits: Splits) -> Splits:
    """Return the same rows, each on its side of an account; raise AccountError if they are others.

    Of equal rows, the first ones are trained on.
    """
    every = all_rows(splits)
    digests = digest_rows(every, account.salt)
    sides = read_sides(account)
    if Counter(digests) != Counter(sides):
        raise AccountError(
            "the rows are not those that the privacy account was opened for: put them back, or"
            " open an account for them (fairbloom client account open)"
        )
    left = Counter(sides[: account.train])
    trains = np.zeros(len(digests), bool)
    for number, digest in enumerate(digests):
        trains[number] = left[digest] > 0
        left[digest] -= 1
    return split_at(every, trains)

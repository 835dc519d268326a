"""The sides of a device's rows: each is for training, tests or validation, and stays there.

`partition.split` deals rows by their numbers, so a file that grows would be dealt anew, and rows
that a model was trained on would test it. A device keeps the side of each row that it has seen, by
a digest under its own secret. With a schema's unit, the same holds of units in place of rows.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
from blake3 import blake3

from fairbloom.errors import ReportableError
from fairbloom.logs import log
from fairbloom.system.versions import FOLDER, read_kept, secret_of, write_kept
from fairbloom.tables.schema import Schema
from fairbloom.tables.toml import write_key
from fairbloom.text import join_first

from .partition import Parts, split
from .task import Setup

# Bytes of a digest.
DIGEST_BYTES = 16

LOSS = (
    "without it training rows might become test rows. Bring the state-dir back from a copy, or"
    " begin a run with another seed"
)

COUNT_LOSS = "it only has numbers of rows: delete it"

# The file of the columns that a device's data have had.
COLUMNS = "columns"
COLUMNS_LOSS = "it only has names of columns: delete it"


class DeviceSetup(Setup):
    """The setup of a run on a device, with the state folder that keeps the sides of its rows.

    `after` is the digest of the model of all rows that the run's initial weights go back to, or "".
    Only the device itself `writes` sides; predictions read them.
    """

    state_dir: str
    after: str
    writes: bool


@dataclass(frozen=True)
class Sides:
    """The sides of all rows, or units, that a split has seen.

    Attributes
    ----------
    rows
        By the digest of a row, the places in `Parts` of it and of all equal ones, in the order of
        the table: "010" of three equal rows of which the second one is for tests.
    tables
        The digests of the different tables that were seen, the first one first.
    """

    rows: Mapping[str, str]
    tables: Sequence[str]

    def encode(self) -> bytes:
        """Return the content of a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return what `encode` wrote; no rows for b""."""
        return cls(**json.loads(content or b'{"rows": {}, "tables": []}'))


def digest_rows(rows: Iterable[bytes], secret: bytes) -> list[str]:
    """Return the digest of each row, or unit, under a secret of 32 bytes."""
    return [blake3(row, key=secret).hexdigest(DIGEST_BYTES) for row in rows]


def split_by_sides(
    count: int, setup: Setup, client: str, contents: Callable[[], Iterable[bytes]], unit: str = ""
) -> tuple[Parts, int]:
    """Return the parts of a client's rows, or units, as indices below `count`.

    On a device, those that it has seen before keep their side; `contents` returns what is in each.
    The second value is then the number of their table among the different ones, from 1; else 0.
    """
    first = split(np.arange(count), setup, client)
    if not isinstance(setup, DeviceSetup):
        return first, 0
    folder = Path(setup.state_dir)
    secret = secret_of(folder)
    of_all = [unit, client]
    of_split = [*of_all, setup.seed, setup.test_share, setup.validation_share, setup.after]
    path, path_of_all = (folder / FOLDER / f"sides-{_digest(each)}" for each in (of_split, of_all))
    if not setup.test_share:
        path = path_of_all
    kept = Sides.decode(read_kept(path, secret, LOSS))
    if setup.after and not kept.tables:
        kept = Sides(Sides.decode(read_kept(path_of_all, secret, LOSS)).rows, [])
    digests = digest_rows(contents(), secret)
    parts, rows = assign(kept.rows, digests, first, setup)
    table = _digest(sorted(digests))
    sides = Sides(rows, [*dict.fromkeys([*kept.tables, table])])
    if setup.writes and sides != kept:
        write_kept(path, sides.encode(), secret)
    return parts, sides.tables.index(table) + 1


def count_missing(count: int, setup: Setup, client: str, unit: str = "") -> int:
    """Return how many fewer rows, or units, a client's data have than before they last changed.

    `count` is their number, also of no use to the run. A device keeps the last two, whatever
    the split and the schema were, and warns when there are fewer; elsewhere, none are missing.
    """
    if not isinstance(setup, DeviceSetup):
        return 0
    folder = Path(setup.state_dir)
    path = folder / FOLDER / f"counts-{_digest([unit, client])}"
    secret = secret_of(folder)
    now, before = map(int, json.loads(read_kept(path, secret, COUNT_LOSS) or "[0, 0]"))
    if count == now:
        return max(0, before - count)
    if setup.writes:
        write_kept(path, json.dumps([count, now]).encode(), secret)
        if count < now:
            log.warning(
                "the data have %d rows, or units, and had %d before: if a file was cut off or a"
                " table is missing, put it back",
                count,
                now,
            )
    return max(0, now - count)


def warn_of_lost_columns(found: Collection[str], schema: Schema, setup: Setup) -> None:
    """Warn of columns that a device's data had, and do not have any more.

    `found` are the schema's columns that they have. The device keeps which they had since a schema
    was accepted.
    """
    if not isinstance(setup, DeviceSetup):
        return
    folder = Path(setup.state_dir)
    had = read_columns(folder)
    lost = [name for name in schema.fields if name in had and name not in found]
    if lost:
        log.warning(
            "no file has the column %s any more, so that it is missing in all rows: if it has"
            ' another name now, say fields.%s.name under [files."*"] in owner.toml. To go on'
            " without it, accept the schema again",
            join_first(lost),
            write_key(lost[0]),
        )
    if setup.writes and not had.issuperset(found):
        keep_columns(folder, had.union(found))


def read_columns(folder: Path) -> set[str]:
    """Return the columns that a device's data had, by its state folder."""
    content = read_kept(folder / FOLDER / COLUMNS, secret_of(folder), COLUMNS_LOSS)
    return {*json.loads(content or "[]")}


def keep_columns(folder: Path, names: Collection[str]) -> None:
    """Keep in a device's state folder the columns that its data have."""
    content = json.dumps(sorted(names)).encode()
    write_kept(folder / FOLDER / COLUMNS, content, secret_of(folder))


def assign(
    kept: Mapping[str, str], digests: Sequence[str], first: Parts, setup: DeviceSetup
) -> tuple[Parts, Mapping[str, str]]:
    """Return the parts of a table, and the sides of all rows, as in `Sides`.

    `first` is the run's own split. It stands if it moves no row that has a side; the parts of other
    tables have the rows in order. Equal rows keep their sides in order, and more of them join
    these, training first. A row that is new has a side by its digest. Raise ReportableError if a
    part would be empty and no new row can fill it.
    """
    sides = np.repeat(range(len(first)), [len(part) for part in first])
    dealt = defaultdict[str, str](str)
    for row, side in zip(digests, sides[np.argsort(np.concatenate(first))], strict=True):
        dealt[row] += str(side)
    if kept.keys().isdisjoint(dealt):
        return first, {**kept, **dealt}
    rows = {**kept, **_extend(kept, digests, setup)}
    stands = all(rows[row].startswith(each) for row, each in dealt.items())
    return first if stands else deal_by_sides(rows, digests), rows


def deal_by_sides(rows: Mapping[str, str], digests: Sequence[str]) -> Parts:
    """Return the parts of a table by the sides of its rows: equal ones get theirs in order."""
    left = {row: iter(rows[row]) for row in digests}
    dealt = [int(next(left[row])) for row in digests]
    sides = np.array(dealt)
    places = range(len(Parts._fields))
    return Parts(*(np.flatnonzero(sides == place) for place in places))


def _extend(kept: Mapping[str, str], digests: Sequence[str], setup: DeviceSetup) -> dict[str, str]:
    """Return the sides of a table's rows, of which `kept` has those that were seen before."""
    rows = dict[str, str]()
    for row, count in Counter(digests).items():
        before = kept.get(row) or _side_of(row, setup)
        rows[row] = before + min(before) * (count - len(before))
    shares = [1.0, setup.test_share, setup.validation_share]
    for place, share in enumerate(shares[:1] if setup.after else shares):
        sizes = [len(part) for part in deal_by_sides(rows, digests)]
        if sizes[place] or not share:
            continue
        new = [row for row in sorted(rows) if row not in kept]
        spare = [row for row in new if sizes[int(rows[row][0])] > len(rows[row])]
        if not spare:
            raise ReportableError(
                f"all its rows, or units, of {Parts._fields[place]} are gone, and the others keep"
                " their sides: put rows back, or begin a run with another seed"
            )
        rows[spare[0]] = str(place) * len(rows[spare[0]])
    return rows


def _side_of(row: str, setup: Setup) -> str:
    """Return the side of a row that comes later, by its digest, the seed and the shares."""
    drawn = int(_digest([row, setup.seed]), 16) / 256.0**DIGEST_BYTES
    ends = np.cumsum([setup.test_share, setup.validation_share])
    return "120"[int(np.searchsorted(ends, drawn, side="right"))]


def _digest(values: Sequence[object]) -> str:
    written = json.dumps(values).encode()
    return blake3(written).hexdigest(DIGEST_BYTES)

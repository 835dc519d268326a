"""What has left of a site's rows is one thing: which releases may follow those before.

A *snapshot* is the rows as they were read on one day; a *release* is a letter or a table of them.
Guards for each kind fail: a letter and then a table would show a person who came in between. So a
new snapshot needs twice the floor of units that came, went or changed since each earlier one, and
of it a column leaves only if its *block*, the cells of all units or of a class, differs from each
block of the column that left before by none or by at least the floor.

A snapshot has two digests of each cell: as it is written, and as it is read. A number that is
written in another way has not changed; nor have all numbers, where one changes how all are read.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .schema import fold

# Digests of cells, by unit; 0 where a cell is empty.
Digests = NDArray[np.uint32]

# A new snapshot needs as many floors of units that came, went or changed.
FLOORS_OF_CHANGES = 2

# Tables of one snapshot.
MAX_TABLES = 2

# Letters of one snapshot: the second has its columns as they are read after they were mended.
MAX_LETTERS = 2

# For so long a snapshot counts against the owner's limit.
YEAR = timedelta(days=365)

# The group of all units; the others are classes of a table's target.
ALL = ""

# Before the name of a file's own column, as the key of a block: as the file has it, and as a
# letter or a table reads it, under whichever name.
SOURCE = "="
AS_READ = "~"

# The kinds of releases.
LETTER = "letter"
TABLE = "table"


@dataclass(frozen=True, eq=False)
class Release:
    """A letter or a table, as it leaves.

    Attributes
    ----------
    kind
        LETTER or TABLE.
    content
        The JSON that leaves.
    columns
        The names of the columns that are in it, of all units.
    sources
        For each of them, the columns of the files that it is read from, by their folded names.
    cells
        The cells of `columns` as they are read for it, of shape (columns, units).
    by_class
        The columns that are in it by class, too.
    schema
        The text of a table's schema; "" of a letter.
    target
        The name of a table's target.
    classes
        Each unit's class by a table, "" for none; empty for a letter.
    reading
        The text of a schema that the files were read with, and what the owner said of them.
    """

    kind: str
    content: str
    columns: tuple[str, ...]
    sources: tuple[tuple[str, ...], ...]
    cells: Digests
    by_class: tuple[str, ...] = ()
    schema: str = ""
    target: str = ""
    classes: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, str))
    reading: str = ""

    def keep(self, every: Collection[str], by_class: Collection[str]) -> "Release":
        """Return it with these columns only."""
        places = [place for place, name in enumerate(self.columns) if name in every]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in places),
            sources=tuple(self.sources[place] for place in places),
            cells=self.cells[places],
            by_class=tuple(each for each in self.by_class if each in every and each in by_class),
        )


class Block(NamedTuple):
    """The given cells of a column in a group of units, as read and, of a file's own, as written."""

    read: Digests
    written: Digests | None = None


# The blocks of a release by its column, the folded name they are compared by, and the group.
Blocks = Mapping[tuple[str, str, str], Block]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The rows of a site as read on one day, one of each unit, and what has left of them.

    Attributes
    ----------
    number
        Its place in the book, from 1.
    day
        The day, as 2025-01-31.
    floor
        The fewest units on which a number of a release depends.
    unit
        The column of persons, or "row".
    names
        The columns, by their folded names.
    written
        The cells as they are written, of shape (columns, units).
    read
        The same as they are read.
    releases
        What has left, in order.
    """

    number: int
    day: str
    floor: int
    unit: str
    names: tuple[str, ...]
    written: Digests
    read: Digests
    releases: tuple[Release, ...] = ()

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The units in an order that depends only on their cells."""
        return np.lexsort((*self.written, *self.read))

    def read_of(self, names: Iterable[str]) -> Digests:
        """Return the cells of columns of the files as they are read, by their folded names.

        Of several, each unit's first that is given: each of a site's files has one of them.
        """
        cells = np.zeros(self.read.shape[1], np.uint32)
        for name in names:
            cells = np.where(cells == 0, self.read[self.names.index(name)], cells)
        return cells

    def find_units(self, other: "Snapshot") -> NDArray[np.intp] | None:
        """Return where each of its units is in another snapshot, None if that has other cells."""
        if self.names != other.names or self.read.shape != other.read.shape:
            return None
        if (self.read[:, self.order] != other.read[:, other.order]).any():
            return None
        return other.order[np.argsort(self.order)]

    def count_changed(self, before: "Snapshot") -> int:
        """Return how many units came, went or changed since an earlier snapshot, at the least.

        By the columns of both: another column makes no unit new.
        """
        shared = [name for name in self.names if name in before.names]
        if not shared:
            return max(len(self.order), len(before.order))
        mine = [self.names.index(name) for name in shared]
        others = [before.names.index(name) for name in shared]
        read = fewest_changed(before.read[others].T, self.read[mine].T)
        written = fewest_changed(before.written[others].T, self.written[mine].T)
        if not written:  # only the owner says otherwise how it is read
            return read
        return min(read, written)

    def blocks_of(self, release: Release) -> Blocks:
        """Return the blocks of a release of this snapshot: as it reads cells, and as files do."""
        blocks: dict[tuple[str, str, str], Block] = {}
        for group, units in groups_of(self, release).items():
            for name in release.columns if group == ALL else release.by_class:
                place = release.columns.index(name)
                cells = release.cells[place]
                blocks[name, fold(name), group] = Block(cells[units & (cells != 0)])
                for source in release.sources[place]:
                    row = self.names.index(source)
                    given = units & (self.read[row] != 0)
                    key = (name, f"{SOURCE}{source}", group)
                    blocks[key] = Block(self.read[row][given], self.written[row][given])
                    key = (name, f"{AS_READ}{source}", group)
                    blocks[key] = Block(cells[units & (cells != 0)])
        return blocks


def groups_of(snapshot: Snapshot, release: Release) -> dict[str, NDArray[np.bool_]]:
    """Return which units of a snapshot are in each group of a release.

    The key of a class has the target's name: classes of two targets are other groups.
    """
    groups = {ALL: np.ones(snapshot.read.shape[1], bool)}
    for name in np.unique(release.classes).tolist():
        if name != ALL:
            groups[f"{fold(release.target)}={name}"] = release.classes == name
    return groups


def count_other(before: Digests, after: Digests) -> int:
    """Return how many cells came between two blocks, or went if those are more."""
    both, places = np.unique(np.concatenate([before, after]), return_inverse=True)
    is_after = np.arange(len(places)) >= len(before)
    came = np.bincount(places[is_after], minlength=len(both))
    went = np.bincount(places[~is_after], minlength=len(both))
    change = came - went
    return int(max(change[change > 0].sum(), -change[change < 0].sum()))


def fewest_changed(before: Digests, after: Digests) -> int:
    """Return how many units came, or went if those are more, by their cells' digests.

    The digests have shape (units, columns). A column that is written anew makes each unit a new
    one, and would hide that few changed in the others: where these tell units apart, and show a
    change, only they count.
    """
    there = np.flatnonzero(before.any(axis=0) & after.any(axis=0))
    changes = [count_other(before[:, place], after[:, place]) for place in there.tolist()]
    every = _count_other_rows(before[:, there], after[:, there])
    others = there[2 * np.array(changes, int) <= len(before)]
    if len(np.unique(before[:, others], axis=0)) * 2 <= len(before):
        return every
    return _count_other_rows(before[:, others], after[:, others]) or every


def _count_other_rows(before: Digests, after: Digests) -> int:
    _, places = np.unique(np.concatenate([before, after]), axis=0, return_inverse=True)
    numbers = places.ravel().astype(np.uint32)
    return count_other(numbers[: len(before)], numbers[len(before) :])


# What may leave -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Allowed:
    """What may leave today: of which snapshot, and whether something new may.

    Attributes
    ----------
    snapshot
        The last one, or a new one of today's rows.
    units
        Where each of the snapshot's units is among today's; None if today's rows are others.
    held
        Why nothing new leaves, and when it may, in a sentence; "" if something may.
    """

    snapshot: Snapshot
    units: NDArray[np.intp] | None
    held: str = ""


def choose_snapshot(book: Sequence[Snapshot], now: Snapshot, most: int) -> Allowed:
    """Return what may leave of today's rows, `now`.

    Parameters
    ----------
    book
        All snapshots of which something has left, in order.
    now
        Today's rows.
    most
        How many snapshots may leave in twelve months, from 0.

    Raises
    ------
    ValueError
        If the unit or the floor is another one than the book's. The floor may rise to a multiple.
    """
    every = np.arange(now.read.shape[1])
    if not book:
        held = _explain_limit(book, now, most)
        return Allowed(now, every, held)
    last = book[-1]
    if now.unit != last.unit:
        raise ValueError(
            f"what has left before counts by unit = {last.unit!r}, and owner.toml says"
            f" {now.unit!r}: both together would show exact counts. Set it back"
        )
    units = last.find_units(now)
    if now.floor != last.floor and (units is not None or now.floor % last.floor):
        raise ValueError(
            f"what has left before has the floor {last.floor}, and limits.rows is {now.floor}: two"
            f" floors of the same rows would show exact counts. Set it back to {last.floor}; once"
            " enough rows have changed, it may be a multiple of that"
        )
    if units is not None:
        return Allowed(last, units)
    needed = FLOORS_OF_CHANGES * max(now.floor, last.floor)
    for earlier in reversed(book):
        changed = now.count_changed(earlier)
        if changed < needed:
            return Allowed(
                last,
                None,
                f"Only {changed} rows changed, or came or went, since what left on {earlier.day},"
                " and a difference would show so few: something new may leave once"
                f" {needed} have.",
            )
    held = _explain_limit(book, now, most)
    return Allowed(last, None, held) if held else Allowed(now, every)


def _explain_limit(book: Sequence[Snapshot], now: Snapshot, most: int) -> str:
    """Return why no further snapshot may leave this year, and when one may, "" if it may."""
    today = date.fromisoformat(now.day)
    days = [date.fromisoformat(each.day) for each in book]
    recent = [day for day in days if day > today - YEAR]
    if len(recent) < most:
        return ""
    text = f"limits.snapshots = {most} in twelve months, and of {len(recent)} something has left"
    if most:
        text += f": a new one may leave on {recent[-most] + YEAR}"
    return f"{text}."


def find_free(
    book: Sequence[Snapshot], snapshot: Snapshot, release: Release
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of a release that may leave in all, and those that may by class.

    `snapshot` is the one that the release is of, whether the book has it already or not.
    """
    blocks = snapshot.blocks_of(release)
    members = members_of(snapshot, release)
    held = set[tuple[str, str]]()
    for before in (*book, snapshot) if snapshot not in book else book:
        for sent in before.releases:
            left = before.blocks_of(sent)
            for (name, key, group), own in blocks.items():
                others = _find_namesakes(key, before, snapshot, left)
                same = (
                    block
                    for (_, other, of), block in left.items()
                    if other in others and of == group
                )
                if not all(_are_apart(each, own, snapshot.floor) for each in same):
                    held.add((name, group))
            for group, before_them in members_of(before, sent).items():
                if group in members:
                    changed = count_other(before_them, members[group])
                    if 0 < changed < snapshot.floor:
                        held.update((name, group) for name in release.by_class)
    every = tuple(name for name in release.columns if (name, ALL) not in held)
    in_class = {name for name, group in held if group != ALL}
    return every, tuple(each for each in release.by_class if each in every and each not in in_class)


def _find_namesakes(key: str, before: Snapshot, now: Snapshot, left: Blocks) -> set[str]:
    """Return the names of blocks that left with which one of today's is compared.

    A column that had no namesake then may be one that is gone, under another name.
    """
    names = {other for _, other, _ in left}
    known = names | {f"{SOURCE}{name}" for name in before.names}
    if key in known:
        return {key}
    present = {f"{SOURCE}{name}" for name in now.names}
    return {other for other in names if other.startswith(SOURCE) and other not in present}


def _are_apart(left: Block, own: Block, floor: int) -> bool:
    """Return whether blocks differ by none or by at least the floor.

    Where one cell changes how all are read, those that are written in another way count.
    """
    changed = count_other(left.read, own.read)
    if changed >= floor and left.written is not None and own.written is not None:
        changed = count_other(left.written, own.written) or changed
    return not 0 < changed < floor


def members_of(snapshot: Snapshot, release: Release) -> dict[str, Digests]:
    """Return the units of each class of which a release says something: all alike if unnamed."""
    named = np.zeros(snapshot.read.shape[1], np.uint32)
    if fold(snapshot.unit) in snapshot.names:
        named = snapshot.read[snapshot.names.index(fold(snapshot.unit))]
    groups = groups_of(snapshot, release) if release.by_class else {}
    return {group: named[units] for group, units in groups.items() if group != ALL}


def find_shared(release: Release) -> set[str]:
    """Return the columns of files from which several columns of a table are read.

    A letter's column of these cannot be bounded by one column of the table.
    """
    sources = Counter(source for each in release.sources for source in {*each})
    return {source for source, columns in sources.items() if columns > 1}


def find_parted(snapshot: Snapshot, release: Release) -> set[str]:
    """Return the columns of a table that another table of the snapshot reads in another way.

    Two partitions of the same rows would show the few between them.
    """
    parted = set[str]()
    for sent in snapshot.releases:
        if sent.kind != TABLE:
            continue
        if (sent.classes != release.classes).any():
            return {*release.columns}
        for name, sources, cells in zip(
            release.columns, release.sources, release.cells, strict=True
        ):
            for others, left in zip(sent.sources, sent.cells, strict=True):
                if {*sources} & {*others} and (cells != left).any():
                    parted.add(name)
    return parted

"""Letters: the profile of a site's tables as it leaves the site, and what stands for them there.

A letter depends on no value that fewer units than its floor hold: profiles.py has the law. Where
rows belong to persons, it counts the first row of each. The server compares letters as one machine
compares files, and drafts a schema from a table that stands for each of them.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.system.values import decode_as
from fairbloom.text import join_first

from .advice import propose, say
from .cells import MISSING, FileColumn, parse_number
from .comparison import Finding
from .identifiers import DATE, find_units, judge_numbers, judge_texts, rows_of_units
from .inference import squash, survey_files
from .profiles import (
    MAX_LISTED,
    MAX_PATTERN,
    PROBABILITIES,
    Cells,
    ColumnProfile,
    profile,
)
from .reading import ReadTable
from .reasons import DataError
from .schema import MAX_TEXT, Decimal, GroupMark, SchemaFile, fold, normalise
from .survey import Column, Sites

# The unit of a site each of whose rows is another person.
ROW = "row"

# Bytes of a letter, and its lowest floor.
MAX_BYTES = 2**20
MIN_FLOOR = 5

# All that a letter says of a column by which a person, a row or a day could be found.
IDENTIFIES = "it seems to name persons, rows or dates"

# The kinds of what only rows show; see `Found`.
KINDS = ("far", "negative", "zero", "two-units", "exclusive")

# Bytes of the digest of a row.
DIGEST_BYTES = 8

# The most rows that a letter may count.
MAX_COUNTED = 10**12

# Rows of the table that stands for a letter, and its seed.
MAX_ROWS = 10_000
SEED = 0


class LetterError(FairbloomError):
    """A letter that is refused; the message says what is wrong with it."""


@dataclass(frozen=True)
class Format:
    """How files are written: `group` separates thousands, "" if nothing does."""

    encoding: str
    decimal: Decimal
    group: GroupMark


@dataclass(frozen=True, kw_only=True)
class Letter:
    """The profile of a site's tables.

    Attributes
    ----------
    client
        The site's name.
    date
        The day on which it was made, as 2025-01-31.
    floor
        The fewest units on which a number of it depends, from MIN_FLOOR.
    unit
        The column of each row's person, or ROW if each row is another one.
    formats
        How the site's files are written, each way once.
    rows
        The number of rows, one of each person, rounded down to a multiple of the floor.
    columns
        The profile of each column, by its name at the site.
    """

    client: str
    date: str
    floor: int
    unit: str
    formats: tuple[Format, ...]
    rows: int
    columns: Mapping[str, ColumnProfile]


def encode_letter(letter: Letter) -> bytes:
    """Return a letter as JSON."""
    return json.dumps(asdict(letter)).encode()


def decode_letter(content: bytes) -> Letter:
    """Return the letter in JSON; raise LetterError unless all that it says is in its range."""
    if len(content) > MAX_BYTES:
        raise LetterError(
            f"the profile has {len(content):,} bytes, and {MAX_BYTES:,} are the most: leave columns"
            " out of the files"
        )
    try:
        letter = decode_as(Letter, json.loads(content))
        date.fromisoformat(letter.date)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LetterError(f"it is no profile: {str(error)[:MAX_TEXT]}") from error
    faults = [law for law, holds in _laws(letter) if not holds]
    for name, column in letter.columns.items():
        faults += [
            f"{name[:MAX_TEXT]!r}: {law}" for law, holds in _laws_of(column, letter) if not holds
        ]
    if faults:
        raise LetterError(f"the profile is not as a device makes it: {join_first(faults, 3)}")
    return letter


def _laws(letter: Letter) -> Iterator[tuple[str, bool]]:
    """Yield what holds for each letter, and whether it holds for this one."""
    texts = (letter.client, letter.unit, *(each.encoding for each in letter.formats))
    texts += tuple(letter.columns)
    yield "the date has ten characters", len(letter.date) == 10
    yield f"the floor is at least {MIN_FLOOR}", letter.floor >= MIN_FLOOR
    yield f"it has at most {MAX_COUNTED} rows", letter.rows <= MAX_COUNTED
    yield f"names have 1 to {MAX_TEXT} characters", all(0 < len(each) <= MAX_TEXT for each in texts)


def _laws_of(column: ColumnProfile, letter: Letter) -> Iterator[tuple[str, bool]]:
    """Yield what holds for each column of a letter, and whether it holds for this one."""
    floor = max(letter.floor, 1)
    tables = (column.missing, column.values, column.patterns)
    listed = [count for table in tables for count in table.values()]
    listed += [each.rows for each in column.found]
    named = sum(column.missing.values()) + sum(column.values.values()) + column.others
    given = [each for each in column.quantiles if each is not None]
    only = ColumnProfile(letter.rows, {}, floor=floor, identifier=IDENTIFIES)
    yield (
        "it has the rows and the floor of the letter",
        (column.rows, column.floor) == (letter.rows, floor),
    )
    yield (
        "a count is a multiple of the floor",
        all(
            count >= floor and count % floor == 0
            for count in (*listed, column.rows + floor, column.others + floor)
        ),
    )
    yield "counts add up to at most the rows", named <= column.rows
    yield f"it lists at most {MAX_LISTED} values", all(len(each) <= MAX_LISTED for each in tables)
    yield (
        f"texts have at most {MAX_TEXT} characters",
        all(
            len(text) <= most
            for table, most in zip(tables, (MAX_TEXT, MAX_TEXT, MAX_PATTERN), strict=True)
            for text in table
        ),
    )
    yield (
        "it has seven ascending quantiles of three digits and no values, or none",
        (
            not column.quantiles
            or (len(column.quantiles) == len(PROBABILITIES) and not column.values)
        )
        and given == sorted(float(f"{each:.3g}") for each in given),
    )
    yield (
        "what rows show is of a known kind",
        len(column.found) <= MAX_LISTED
        and all(each.kind in KINDS and len(each.column) <= MAX_TEXT for each in column.found),
    )
    yield "an identifier has nothing else", column == only or not column.identifier


# A site -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SiteTables:
    """The tables of one site, and their columns by folded name."""

    tables: Sequence[ReadTable]
    parts: Sequence[Mapping[str, FileColumn]]

    @classmethod
    def of(cls, tables: Mapping[Path, ReadTable]) -> "SiteTables":
        """Return tables, with the marks of their numbers."""
        marked, parts, _ = survey_files(tables)
        return cls([*marked.values()], parts)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns by their names in the first table that has them."""
        return self.take(np.arange(sum(map(len, self.tables))))

    def take(self, rows: NDArray[np.intp]) -> dict[str, Column]:
        """Return the columns with these rows only, of all tables, counted from 0."""
        starts = np.cumsum([0, *map(len, self.tables)])
        own = [
            rows[(rows >= start) & (rows < end)] - start
            for start, end in itertools.pairwise(starts)
        ]
        owners = [0] * len(self.tables)
        sites = Sites([""], self.tables, own, np.array([len(rows)]), owners)
        names = {fold(name): name for table in self.tables[::-1] for name in table.columns}
        return {
            name: Column.of(sites, [part.get(folded) for part in self.parts])
            for folded, name in names.items()
        }

    def rows_of(self, unit: str) -> NDArray[np.intp]:
        """Return the first row of each person, or all rows if `unit` is ROW.

        Rows without a person are left out. Raise DataError if a table has no such column.
        """
        if unit == ROW:
            return np.arange(sum(map(len, self.tables)))
        for table in self.tables:
            if table.find(unit) is None:
                raise DataError(
                    f"{table.path} has no column {unit!r}, the unit: name one of"
                    f' {join_first([*table.columns])} in owner.toml, or write unit = "{ROW}" if'
                    " each row is another person"
                )
        units = find_units(self.columns[self._name_of(unit)])
        having = np.flatnonzero(units >= 0)
        return np.sort(having[np.unique(units[having], return_index=True)[1]])

    def _name_of(self, name: str) -> str:
        return next(each for each in self.columns if fold(each) == fold(name))

    def check_names(self) -> None:
        """Raise DataError if the names of columns look like data: they may be a first row.

        A name would then be a cell of one person, which may not leave.
        """
        for table, part in zip(self.tables, self.parts, strict=True):
            for name in table.columns:
                cells = part[fold(name)].texts if fold(name) in part else ()
                is_cell = any(fold(text) == fold(name) for text in cells)
                numbers = (parse_number(name), parse_number(name, ","))
                if (
                    is_cell
                    or DATE.fullmatch(name)
                    or numbers != (None, None)
                    or fold(name) in MISSING
                ):
                    raise DataError(
                        f"{table.path}: the name of a column, {name!r}, looks like a cell, or is"
                        " one: write the names of the columns into the first line, and only there,"
                        " or state headerRows under [files] in owner.toml"
                    )

    def profile(self, unit: str = ROW, floor: int = 1) -> dict[str, ColumnProfile]:
        """Return the profile of each column; only that it is one of a column of identifiers."""
        rows = self.rows_of(unit)
        columns = self.take(rows)
        cells = {
            name: Cells.of_column(column, slice(None))
            for name, column in columns.items()
            if fold(name) != fold(unit)
            and not any(is_identifier(name, each) for each in (column, self.columns[name]))
        }
        count = len(rows) // floor * floor
        hidden = ColumnProfile(count, {}, floor=floor, identifier=IDENTIFIES)
        return dict.fromkeys(columns, hidden) | profile(cells, floor)

    def may_name_persons(self) -> list[str]:
        """Return the columns whose values, like those of persons, have several rows each."""
        return [name for name, column in self.columns.items() if rows_of_units(name, column)]

    def digest(self, rows: NDArray[np.intp], secret: bytes) -> NDArray[np.uint64]:
        """Return the digests of these rows under a secret of 32 bytes, in ascending order."""
        found = []
        for _table, part in zip(self.tables, self.parts, strict=True):
            cells = [
                np.array([_digest(text.encode()) for text in column.texts], np.uint64)[column.codes]
                if len(column.texts)
                else column.numbers.view(np.uint64)
                for column in part.values()
            ]
            found.append(np.stack(cells, axis=1))
        digests = [_digest(row.tobytes(), key=secret) for row in np.concatenate(found)[rows]]
        return np.sort(np.array(digests, np.uint64))


def _digest(content: bytes, key: bytes | None = None) -> int:
    return int.from_bytes(blake3(content, key=key).digest(DIGEST_BYTES), "big")


def count_changed(before: NDArray[np.uint64], after: NDArray[np.uint64]) -> int:
    """Return how many rows, by their digests, were added, or taken away if those are more."""
    values, places = np.unique(np.concatenate([before, after]), return_inverse=True)
    more = np.bincount(places[len(before) :], minlength=len(values))
    fewer = np.bincount(places[: len(before)], minlength=len(values))
    change = more - fewer
    return int(max(change[change > 0].sum(), -change[change < 0].sum()))


def letter_of(site: SiteTables, client: str, day: str, floor: int, unit: str) -> Letter:
    """Return the letter of a site, with a floor of at least MIN_FLOOR.

    `day` is the date, and `unit` the column of persons, or ROW. Raise DataError if the files have
    no such column, or the names of their columns look like data.
    """
    site.check_names()
    columns = site.profile(unit, floor)
    formats = dict.fromkeys(
        Format(table.file.encoding, table.decimal, table.file.groupChar) for table in site.tables
    )
    return Letter(
        client=client,
        date=day,
        floor=floor,
        unit=unit,
        formats=tuple(formats),
        rows=max((each.rows for each in columns.values()), default=0),
        columns=columns,
    )


def is_identifier(name: str, column: Column) -> bool:
    """Return whether a column seems to name persons, rows or dates, by its name or its cells."""
    odd = column.odd_counts
    is_number = 2 * odd.total() < column.is_present.sum()
    finding = judge_numbers(name, column) if is_number else judge_texts(column)
    longest = max(map(len, odd), default=0)
    return bool(finding.ignored or finding.unused) or longest > MAX_TEXT


# Many sites ---------------------------------------------------------------------------------------


def join_columns(letters: Iterable[Letter]) -> dict[str, dict[str, ColumnProfile]]:
    """Return the profiles of each field by site, under the most frequent of its names.

    At a site that lacks a column which most have, all rows are without a value.
    """
    letters = [*letters]
    names: dict[str, Counter[str]] = {}
    for letter in letters:
        for name in letter.columns:
            names.setdefault(squash(name), Counter())[normalise(name)] += 1
    fields = {}
    for key, spelled in names.items():
        sites = {
            letter.client: column
            for letter in letters
            for name, column in letter.columns.items()
            if squash(name) == key
        }
        if 2 * len(sites) > len(letters):
            lacking = [letter for letter in letters if letter.client not in sites]
            sites |= {
                each.client: ColumnProfile(each.rows, {"": each.rows}, floor=each.floor)
                for each in lacking
            }
        fields[spelled.most_common(1)[0][0]] = sites
    return fields


def describe(findings: Sequence[Finding], file: str) -> Iterator[str]:
    """Yield a line for each finding, and below it the lines that it proposes.

    `file` is the key under `files` of a proposal for a site.
    """
    for each in findings:
        yield f"{join_first(each.sites, 3)}: {each.field}: {say(each)}"
        yield from (f"    {line}" for part in propose(each, file) for line in part.splitlines())


def stand_in(letter: Letter, unit: str) -> ReadTable:
    """Return a table that a letter may be of: values as often as counted, in an order by chance.

    Each column is shuffled by itself, so that none determines another. The column of persons is
    called `unit`; numbers are drawn along the quantiles.
    """
    import pyarrow as pa  # imported late: a server reads no tables

    random = np.random.default_rng(SEED)
    count = min(letter.rows, MAX_ROWS)
    columns = {}
    for name, column in letter.columns.items():
        cells = _cells_of(column, count)
        shown = unit if fold(name) == fold(letter.unit) else name
        columns[shown] = pa.chunked_array(
            [random.permutation(cells).astype(object).tolist()], pa.string()
        )
    file = SchemaFile(decimalChar=".")
    file._key = f"{letter.client}.csv"
    return ReadTable(Path(file.key), columns, np.arange(count) + 2, file=file)


def _cells_of(column: ColumnProfile, count: int) -> NDArray[np.str_]:
    """Return as many cells as a column may have, in proportion to what its profile counts."""
    share = count / max(column.rows, 1)
    listed = Counter(column.missing) + Counter(column.values) + Counter(column.patterns)
    cells = [text for text, rows in listed.items() for _ in range(math.ceil(rows * share))]
    if column.identifier or column.others > column.present / 2:
        cells = [f"id-{place:06}" for place in range(count)]
    elif column.quantiles:
        given = [each is not None for each in column.quantiles]
        known = [each for each in column.quantiles if each is not None] or [0.25, 0.75]
        grid = (np.arange(count - len(cells)) + 0.5) / max(count - len(cells), 1)
        at = PROBABILITIES[given] if any(given) else PROBABILITIES[[2, 4]]
        cells += [f"{number:.6g}" for number in np.interp(grid, at, known).tolist()]
    return np.resize(np.array(cells or [""]), count)

"""Letters: the profile of a site's tables as it leaves the site, and what stands for them there.

A letter depends on no value that fewer units than its floor hold: profiles.py has the law. Where
rows belong to persons, it counts the first row of each. The server compares letters as one machine
compares files, and drafts a schema from a table that stands for each of them.
"""

import itertools
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.system.values import decode_as
from fairbloom.text import join_first, text_if

from .cells import MAX_NUMBER, MISSING, FileColumn, different_cells, parse_number
from .comparison import IN_ROWS, Absent, Categories, Profiles, compare, match_names, match_rare
from .conversions import OF_FACTORS
from .findings import IF_SO, Change, Finding, join_own, write_added
from .grammar import NEARLY_ALL
from .identifiers import DATE, FEWEST_ROWS, find_units, judge_most_texts, judge_numbers
from .mended import Mended, mend
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
from .schema import (
    EVERY_FILE,
    MAX_TEXT,
    Field,
    FileField,
    Schema,
    SchemaFile,
    fold,
    normalise,
    squash_apart,
)
from .sides import settle
from .survey import Column, Sites
from .toml import quote, write_key

# The unit of a site where each row is another person.
ROW = "row"

# Bytes of a letter, and its lowest floor.
MAX_BYTES = 2**20
MIN_FLOOR = 5

# How a file is written that needs no line in a schema, by the keys of `SchemaFile`.
USUAL = {"encoding": "utf-8", "decimalChar": ".", "groupChar": ""}

# A field of which no schema says more yet.
NUMBER = Field(type="number")

# The schema that reads files as they are.
AS_FILES_HAVE = Schema(target="", fields={})

# Bytes of the digest of a cell.
DIGEST_BYTES = 4

# Rows of the table that stands for a letter, and the seed of their order.
MAX_ROWS = 10_000
SEED = 0


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
        How the site's files are written, by the keys of USUAL, each way once.
    rows
        The number of rows, one of each person, rounded down to a multiple of the floor.
    columns
        The profile of each column, by its name as the site reads it.
    schema
        The digest of the schema that the site reads its files with, "" without one.
    """

    client: str
    date: str
    floor: int
    unit: str
    formats: tuple[Mapping[str, str], ...]
    rows: int
    columns: Mapping[str, ColumnProfile]
    schema: str = ""


def encode_letter(letter: Letter) -> bytes:
    """Return a letter as JSON."""
    return json.dumps(asdict(letter)).encode()


def decode_letter(content: bytes) -> Letter:
    """Return the letter in JSON; raise FairbloomError unless all that it says is in its range."""
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"{len(content):,} bytes, and {MAX_BYTES:,} are the most")
        letter = decode_as(Letter, json.loads(content))
        broken = [*_find_broken(letter)]
        if broken:
            raise ValueError(join_first(broken, 3))
    except (ValueError, KeyError, RecursionError) as error:
        raise FairbloomError(
            f"it is no profile as a device makes it: {str(error)[:MAX_TEXT]}"
        ) from error
    return letter


def _find_broken(letter: Letter) -> Iterator[str]:
    """Yield what must hold for a letter, and does not."""
    floor = max(letter.floor, 1)
    names = (letter.client, letter.unit, *letter.columns)
    formats = [each for each in letter.formats if SchemaFile.model_validate(each)]
    if letter.floor < MIN_FLOOR:
        yield f"the floor is at least {MIN_FLOOR}"
    if not letter.columns or letter.rows > 10**12:
        yield "it has columns and at most 10^12 rows"
    if str(date.fromisoformat(letter.date)) != letter.date:
        yield "its date is a day"
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", letter.client):
        yield "its client has a client's name"
    if not all(0 < len(each) <= MAX_TEXT for each in names):
        yield "names have 1 to 200 characters"
    if not re.fullmatch("([0-9a-f]{64})?", letter.schema):
        yield "its schema is a digest"
    if any(each.keys() != USUAL.keys() for each in formats):
        yield "formats have their keys"
    for name, column in letter.columns.items():
        for law in _find_broken_of(column, letter.rows, floor):
            yield f"{name[:MAX_TEXT]!r}: {law}"


def _find_broken_of(column: ColumnProfile, rows: int, floor: int) -> Iterator[str]:
    """Yield what must hold for each column of a letter, and does not for this one."""
    tables = (column.missing, column.values, column.patterns)
    counts = [count for table in tables for count in table.values()]
    counts += [each.rows for each in column.found]
    others = [each.column for each in column.found]
    texts = [*column.missing, *column.values, *others]
    named = column.empty + sum(column.values.values()) + column.others
    given = [each for each in column.quantiles if each is not None]
    numbers = [*given, *(each.number for each in column.found)]
    if (column.rows, column.floor) != (rows, floor):
        yield "rows and floor are the letter's"
    if min(counts, default=floor) < floor:
        yield "a count is at least the floor"
    if any(count % floor for count in (*counts, rows, column.others)):
        yield "a count is a multiple of the floor"
    if not 0 <= column.others <= named <= rows:
        yield "counts add up to at most the rows"
    if max(*map(len, tables), len(column.found)) > MAX_LISTED:
        yield "it lists at most 100"
    if max(map(len, texts), default=0) > MAX_TEXT:
        yield "texts have at most 200 characters"
    if max(map(len, column.patterns), default=0) > MAX_PATTERN:
        yield "patterns are short"
    if len(column.quantiles) not in (0, len(PROBABILITIES)):
        yield "there are seven quantiles, or none"
    if column.quantiles and column.values:
        yield "it has quantiles or values"
    if not all(abs(each) <= MAX_NUMBER for each in numbers):
        yield f"numbers are at most {MAX_NUMBER:g}"
    if given != sorted(float(f"{each:.3g}") for each in given):
        yield "quantiles ascend, with three digits"
    if not all(each.kind in IN_ROWS for each in column.found):
        yield "what rows show is of a kind"
    if not {each.units for each in column.found} <= {"", *(way.about for way in OF_FACTORS)}:
        yield "two units are a known conversion's"
    hidden = ColumnProfile(rows, {}, floor=floor, identifier=True)
    if column.identifier and column != hidden:
        yield "an identifier has nothing else"


# A site -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SiteTables:
    """The tables of one site, as their files have them and as they are read.

    Attributes
    ----------
    tables
        The files.
    parts
        The columns of each as it has them, by folded name.
    mended
        The columns of each as they are read, by folded name.
    schema
        The digest of the schema that they are read with, "" without one.
    """

    tables: Sequence[ReadTable]
    parts: Sequence[Mapping[str, FileColumn]]
    mended: Sequence[Mapping[str, Mended]]
    schema: str = ""

    @classmethod
    def of(
        cls,
        tables: Sequence[ReadTable],
        parts: Sequence[Mapping[str, FileColumn]],
        schema: Schema = AS_FILES_HAVE,
    ) -> "SiteTables":
        """Return the tables as a schema reads them, by default as the files have them."""
        pairs = zip(tables, parts, strict=True)
        return cls(tables, parts, [mend(table, part, schema) for table, part in pairs])

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self.tables))

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns as the files have them, by their names in the first one that has them."""
        sites = self._sites_of(np.arange(len(self)))
        names = {fold(name): name for table in self.tables[::-1] for name in table.columns}
        columns: dict[str, Column] = {}
        for folded, name in names.items():
            parts = [part.get(folded) for part in self.parts]
            columns[name] = Column.of(sites, parts)
        return columns

    @cached_property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The files' columns, by folded name, that each column is read from."""
        names: dict[str, str] = {}
        sources: dict[str, dict[str, None]] = {}
        for part in self.mended:
            for folded, each in part.items():
                name = names.setdefault(folded, each.name)
                sources.setdefault(name, {})[each.source] = None
        return {name: tuple(own) for name, own in sources.items()}

    @cached_property
    def read(self) -> dict[str, Column]:
        """The columns as they are read, with all rows."""
        return self.take(np.arange(len(self)))

    def take(self, rows: NDArray[np.intp]) -> dict[str, Column]:
        """Return the columns as they are read, of these rows of all tables, counted from 0."""
        sites = self._sites_of(rows)
        columns: dict[str, Column] = {}
        for name in self.sources:
            mended = [part.get(fold(name)) for part in self.mended]
            parts = [None if each is None else each.column for each in mended]
            columns[name] = Column.of(sites, parts)
        return columns

    def _sites_of(self, rows: NDArray[np.intp]) -> Sites:
        """Return the one site with these rows."""
        starts = np.cumsum([0, *map(len, self.tables)])
        own = [
            rows[(rows >= start) & (rows < end)] - start
            for start, end in itertools.pairwise(starts)
        ]
        return Sites([""], self.tables, own, np.array([len(rows)]), [0] * len(self.tables))

    def name_all(self, sources: Collection[str]) -> set[str]:
        """Return the names under which columns of the files, by folded name, are read."""
        return {name for name, own in self.sources.items() if not {*own}.isdisjoint(sources)}

    def name_read(self, source: str) -> str:
        """Return the name under which a column of the files is read, "" if it is not."""
        names = [*self.name_all([fold(source)])]
        return names[0] if names else ""

    def rows_of(self, unit: str) -> NDArray[np.intp]:
        """Return the first row of each person, or all rows if `unit` is ROW.

        Rows without a person are left out. Raise DataError if a table has no such column.
        """
        if unit == ROW:
            return np.arange(len(self))
        for table in self.tables:
            if table.find(unit) is None:
                raise DataError(
                    f"{table.path} has no column {unit!r}, the unit: name one of"
                    f' {join_first([*table.columns])} in owner.toml, or write unit = "{ROW}" if'
                    " each row is another person"
                )
        units = self._units_of(unit)
        having = np.flatnonzero(units >= 0)
        return np.sort(having[np.unique(units[having], return_index=True)[1]])

    def _units_of(self, unit: str) -> NDArray[np.int64]:
        """Return the index of each row's person, -1 for none, by the column that names it."""
        (name,) = (each for each in self.columns if fold(each) == fold(unit))
        return find_units(self.columns[name])

    def _most_rows_of(self, unit: str) -> int:
        """Return the most rows of one person."""
        if unit == ROW:
            return 1
        units = self._units_of(unit)
        return int(np.bincount(units[units >= 0], minlength=1).max())

    def check_names(self) -> None:
        """Raise DataError if the names of columns look like data: they may be a first row.

        A name would then be a cell of one person, which may not leave.
        """
        for table, part in zip(self.tables, self.parts, strict=True):
            for name in table.columns:
                is_cell = fold(name) in part and any(
                    fold(text) == fold(name) for text in part[fold(name)].texts
                )
                if (
                    is_cell
                    or DATE.fullmatch(name)
                    or (parse_number(name), parse_number(name, ",")) != (None, None)
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
        named = {fold(name): name for name in self.columns}
        of_all = floor * self._most_rows_of(unit)  # rows that are of the floor's persons
        cells: dict[str, Cells] = {}
        for name, column in columns.items():
            sources = [named[source] for source in self.sources[name]]
            # by the rows that count and by all, as they are read and as the files have them
            judged = [(name, column, floor), (name, self.read[name], of_all)]
            judged += [(source, self.columns[source], of_all) for source in sources]
            is_unit = fold(unit) in self.sources[name]
            if not is_unit and not any(is_identifier(*each) for each in judged):
                cells[name] = Cells.of_column(column, slice(None))
        hidden = ColumnProfile(len(rows) // floor * floor, {}, floor=floor, identifier=True)
        return dict.fromkeys(columns, hidden) | profile(cells, floor)

    def digest(
        self, rows: NDArray[np.intp], secret: bytes
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the digests of these rows' cells as written and as read, of shape (columns, rows).

        The columns are in the order of their folded names, and the secret has 32 bytes. They are 0
        where a table has no such column; as read, also where a value is missing.
        """
        written = list[NDArray[np.uint32]]()
        read = list[NDArray[np.uint32]]()
        for name in sorted(self.columns, key=fold):
            parts = [_digest_cells(table, name, secret) for table in self.tables]
            written.append(np.concatenate(parts)[rows])
            column = self.columns[name]
            read.append(_digest_entries(column, secret)[column.codes[rows]])
        return np.stack(written), np.stack(read)

    def digest_read(self, name: str, rows: NDArray[np.intp], secret: bytes) -> NDArray[np.uint32]:
        """Return the digests of the cells of a column as they are read; 0 for a missing one.

        A factor and an offset change no digest: they move all numbers, and hide no change.
        """
        column = self.take(rows)[name]
        digests = _digest_entries(column, secret)[column.codes]
        owned = [part[fold(name)] for part in self.mended if fold(name) in part]
        if not any(each.is_converted for each in owned):
            return digests
        raw = np.zeros(len(rows), np.uint32)
        by_source = {fold(each): column for each, column in self.columns.items()}
        for source in self.sources[name]:
            own = by_source[source]
            found = _digest_entries(own, secret)[own.codes[rows]]
            raw = np.where(raw == 0, found, raw)
        return np.where(digests == 0, 0, raw).astype(np.uint32)


def _digest_cells(table: ReadTable, name: str, secret: bytes) -> NDArray[np.uint32]:
    """Return a digest of each cell as it is written: how it is read may change with other rows."""
    values = table.find(name)
    if values is None:
        return np.zeros(len(table), np.uint32)
    texts, codes = different_cells(values)
    return digest_values(texts, secret)[codes]


def _digest_entries(column: Column, secret: bytes) -> NDArray[np.uint32]:
    """Return a digest of each different cell of a column as it is read; 0 for a missing one."""
    numbers, places = np.unique(column.numbers, return_inverse=True)
    digests = digest_values(numbers.tolist(), secret)[places]
    others = np.flatnonzero(np.isnan(column.numbers))
    texts = [column.texts.get(entry, "") for entry in others.tolist()]
    digests[others] = digest_values(texts, secret)
    digests[column.is_missing] = 0
    return digests


def digest_values(values: Iterable[str | float], secret: bytes) -> NDArray[np.uint32]:
    """Return a digest of each value: numbers by what they are, texts folded."""
    digests = list[bytes]()
    for value in values:
        content = fold(value).encode() if isinstance(value, str) else struct.pack("d", value + 0.0)
        digests.append(blake3(content, key=secret).digest(DIGEST_BYTES))
    return np.frombuffer(b"".join(digests), np.uint32) | np.uint32(1)  # 0 stands for a missing one


def read_value(category: str) -> str | float:
    """Return the name of a category as a cell is read: a number if it is one."""
    number = parse_number(category)
    return category if number is None else number


def letter_of(site: SiteTables, client: str, day: str, floor: int, unit: str) -> Letter:
    """Return the letter of a site, with a floor of at least MIN_FLOOR.

    `day` is the date, and `unit` the files' column of persons, or ROW. Raise DataError if the files
    have no such column, or the names of their columns look like data.
    """
    site.check_names()
    columns = site.profile(unit, floor)
    read_unit = unit if unit == ROW else site.name_read(unit)
    if not read_unit:
        raise DataError(f"owner.toml ignores {unit!r}, the unit: take it out of ignore")
    ways = dict.fromkeys(
        (table.file.encoding, table.decimal, table.file.groupChar) for table in site.tables
    )
    return Letter(
        client=client,
        date=day,
        floor=floor,
        unit=read_unit,
        schema=site.schema,
        formats=tuple(dict(zip(USUAL, way, strict=True)) for way in ways),
        rows=next(iter(columns.values())).rows,
        columns=columns,
    )


def is_identifier(name: str, column: Column, fewest: int = 1) -> bool:
    """Return whether a column seems to name persons, rows or dates, by its name or its cells.

    At least `fewest` rows show it: that one row has a date would show that it has one.
    """
    odd = column.odd_counts
    present = int(column.is_present.sum())
    is_number = 2 * odd.total() < present
    long = sum(rows for text, rows in odd.items() if len(text) > MAX_TEXT)
    if long >= fewest and long > (1.0 - NEARLY_ALL) * present:
        return True
    if is_number:
        return present - odd.total() >= fewest and judge_numbers(name, column).identifies
    return present >= fewest and judge_most_texts(column, fewest).identifies


# Many sites ---------------------------------------------------------------------------------------


def join_columns(letters: Collection[Letter]) -> dict[str, dict[str, ColumnProfile]]:
    """Return the profiles of each field by site, under the most frequent of its names."""
    keys = squash_apart([letter.columns for letter in letters])
    spelled: dict[str, Counter[str]] = {}
    fields: dict[str, dict[str, ColumnProfile]] = {}
    for letter in letters:
        for name, column in letter.columns.items():
            spelled.setdefault(keys[name], Counter())[normalise(name)] += 1
            fields.setdefault(keys[name], {})[letter.client] = column
    return {spelled[key].most_common(1)[0][0]: sites for key, sites in fields.items()}


def compare_letters(
    letters: Collection[Letter], schema: Mapping[str, Field] = {}
) -> tuple[dict[str, Profiles], list[Finding]]:
    """Return the profiles of each field by site, and what stands out.

    A column that most sites have, and one does not, is absent there. Columns that most sites lack
    may be one of several names. The sites that are read by the schema that most of such sites name
    get no line because of others that are not. `schema` has the fields of a schema that is there.
    """
    fields: dict[str, Profiles] = {**join_columns(letters)}
    common = {name: sites for name, sites in fields.items() if 2 * len(sites) > len(letters)}
    own: dict[str, dict[str, ColumnProfile]] = {each.client: {} for each in letters}
    for name, sites in fields.items():
        if len(sites) == 1:
            ((client, column),) = sites.items()
            own[client][name] = column
    absent: list[Finding] = []
    for name, sites in common.items():
        lacking = [each.client for each in letters if each.client not in sites]
        absent += [Absent(name, (client,), 0.0) for client in lacking]
    named = [*match_names(common, own)]
    rare = {name: sites for name, sites in fields.items() if name not in common}
    schemas = Counter(each.schema for each in letters if each.schema)
    agreed = schemas.most_common(1)[0][0] if schemas else None
    right = [each.client for each in letters if each.schema == agreed]
    settled = settle(compare(fields), fields, right, schema)
    return fields, [*named, *match_rare(rare, named), *settled, *absent]


def describe(
    findings: Sequence[Finding], file: str, schema: Mapping[str, Field] = {}
) -> Iterator[str]:
    """Yield a line for each finding, and below it the lines that it proposes.

    `file` is the key under `files` of a proposal for a site, and `schema` has the fields that are
    known.
    """
    for each in findings:
        about = schema.get(each.field, NUMBER)
        if each.field not in schema and isinstance(each, Categories):
            about = Field(type="string", categories=each.words)
        change = each.propose(about, file)
        only = text_if(change and each.condition != IF_SO, f"; {each.condition}:")
        yield f"{join_first(each.sites, 3)}: {each.field}: {each.say()}{only}"
        yield from _indent(change)


def add_own(findings: Sequence[Finding], schema: Mapping[str, Field]) -> dict[str, FileField]:
    """Return what a device's owner may add for its findings, by column.

    `schema` has the fields that are known.
    """
    added: dict[str, FileField] = {}
    for each in findings:
        change = each.change_own(schema.get(each.field, NUMBER))
        if change.model_fields_set:
            added[each.field] = join_own(added.get(each.field, FileField()), change)
    return added


def write_own_lines(added: Mapping[str, FileField], owner: SchemaFile | None) -> Iterator[str]:
    """Yield the lines of owner.toml for what its owner may add; none for nothing.

    A column has one line of a kind, with the values of a present one. `owner` has what owner.toml
    says of all files, None if nothing.
    """
    if not added:
        return
    heading = f"[files.{quote(EVERY_FILE)}]"
    yield f"If these are right, write into owner.toml, below one heading {heading}:"
    if owner is None:
        yield f"    {heading}"
    for name, change in added.items():
        own = FileField() if owner is None else owner.field(name)
        for key, value in write_added(own, change).items():
            is_there = key in own.model_fields_set
            in_place = text_if(is_there, f"  # in place of the {key} there")
            yield f"    fields.{write_key(name)}.{key} = {value}{in_place}"


def _indent(change: Change | None) -> Iterator[str]:
    if change is None:
        return
    for way in change.lines:
        for line in (change.heading, *way):
            yield f"    {line}"


def stand_ins(letters: Collection[Letter], unit: str) -> list[ReadTable]:
    """Return a table for each letter that it may be of: values as often as counted, by chance.

    Each column is shuffled by itself, so that none determines another. The column of persons is
    called `unit` unless that is ""; numbers are drawn along the quantiles. Where a letter does not
    tell most values of a column, they are as in another letter; if most letters do not, each row
    has another text, as in a free text.
    """
    keys = squash_apart([letter.columns for letter in letters])
    usual: dict[str, list[ColumnProfile | None]] = {}
    for letter in letters:
        for name, column in letter.columns.items():
            usual.setdefault(keys[name], []).append(column if _tells(column) else None)
    known: dict[str, ColumnProfile | None] = {}
    for name, key in keys.items():
        telling = [each for each in usual[key] if each is not None]
        known[name] = telling[0] if 2 * len(telling) >= len(usual[key]) else None
    return [_stand_in(letter, unit, known) for letter in letters]


def _tells(column: ColumnProfile) -> bool:
    """Return whether a profile tells most values of a column."""
    return not column.identifier and 2 * column.others <= column.present


def _stand_in(letter: Letter, unit: str, known: Mapping[str, ColumnProfile | None]) -> ReadTable:
    """Return the table of a letter; `known` has a profile of each column by its name."""
    import pyarrow as pa  # imported late: a server reads no tables

    random = np.random.default_rng(SEED)
    count = min(max(letter.rows, FEWEST_ROWS), MAX_ROWS)
    columns = {}
    for name, column in letter.columns.items():
        usual = known[name]
        if usual is None:
            texts = np.array([f"rare-{place:06}" for place in range(count)])
        else:
            texts = _cells_of(column if _tells(column) else usual, count)
        shown = unit if unit and fold(name) == fold(letter.unit) else name
        cells = random.permutation(texts)
        columns[shown] = pa.chunked_array([cells.astype(object).tolist()], pa.string())
    file = SchemaFile(decimalChar=".")
    file._key = f"{letter.client}.csv"
    return ReadTable(Path(file.key), columns, np.arange(count) + 2, file=file)


def _cells_of(column: ColumnProfile, count: int) -> NDArray[np.str_]:
    """Return as many cells as a column may have, in proportion to what its profile counts."""
    share = count / max(column.rows, 1)
    listed = Counter(column.missing) + Counter(column.values) + Counter(column.patterns)
    cells = [text for text, rows in listed.items() for _ in range(math.ceil(rows * share))]
    if column.quantiles:
        given = dict(zip(PROBABILITIES.tolist(), column.quantiles, strict=True))
        known = {share: each for share, each in given.items() if each is not None}
        if not known:  # too few rows: any numbers
            known = {0.25: 0.25, 0.75: 0.75}
        grid = (np.arange(count - len(cells)) + 0.5) / max(count - len(cells), 1)
        numbers = np.interp(grid, [*known], [*known.values()])
        cells += [f"{number:.6g}" for number in numbers.tolist()]
    return np.resize(np.array(cells or [""]), count)

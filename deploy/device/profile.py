"""Profiles of a device's tables, and tables of its rows: what its owner sees, and what leaves.

What has left is in the device's book (`book`), and `tables.releases` has the law of what may follow
it. The answers on schemas that have left are files in the same folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.guard.accepted_schemas import counting_keys, digest_of
from fairbloom.client.guard.limits import Limits
from fairbloom.client.guard.log_entries import NO_RUN
from fairbloom.client.guard.log_files import open_log
from fairbloom.client.private.account import Known
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.versions import FOLDER, secret_of
from fairbloom.tables.audit import Coded, Printed
from fairbloom.tables.comparison import compare
from fairbloom.tables.encoding import EncodedFile, encode_files, is_missing
from fairbloom.tables.folders import files_in, place_of
from fairbloom.tables.identifiers import may_name_persons
from fairbloom.tables.inference import survey_files
from fairbloom.tables.letters import (
    MIN_FLOOR,
    ROW,
    Letter,
    SiteTables,
    decode_letter,
    describe_own,
    digest_values,
    encode_letter,
    letter_of,
    read_value,
)
from fairbloom.tables.profiles import ColumnProfile
from fairbloom.tables.reading import ReadTable, read
from fairbloom.tables.reasons import DataError
from fairbloom.tables.releases import (
    ALL,
    LETTER,
    MAX_TABLES,
    TABLE,
    YEAR,
    Release,
    Snapshot,
    choose_snapshot,
    find_free,
    find_parted,
)
from fairbloom.tables.schema import Schema, fold, parse_schema, with_files
from fairbloom.tables.site_table import (
    SiteTable,
    describe_rows,
    find_lone,
    keep_fields,
    name_classes,
)
from fairbloom.tables.toml import quote
from fairbloom.tasks.catalogue import TASKS
from fairbloom.tasks.sides import keep_columns
from fairbloom.text import join_first, plural, text_if

from ..errors import DeployError
from ..fleet.client import tell
from ..fleet.wire_pb2 import Told
from .book import enter, read_book
from .client import ClientSettings
from .connectivity import connection_fault

# Answers on schemas that have left, in the same folder as the book.
ANSWER = "*.answer"

# Answers that leave in twelve months: a schema's ranges would bisect a largest cell.
MAX_ANSWERS = 12


@dataclass(frozen=True, eq=False)
class Chosen:
    """A release that may leave, of which snapshot, and why it is an earlier one again."""

    snapshot: Snapshot
    release: Release
    note: str = ""

    @property
    def letter(self) -> Letter:
        """The letter that it is."""
        return decode_letter(self.release.content.encode())

    @property
    def table(self) -> SiteTable:
        """The table that it is."""
        return SiteTable.decode(self.release.content.encode())


def read_site(client: ClientSettings) -> SiteTables:
    """Return the tables of a device, as its owner's `files` describe them."""
    formats = Schema(target="", fields={}, files=client.files)
    tables: dict[Path, ReadTable] = {}
    for path in _paths_of(client):
        tables[path] = read(path, formats.file(path.name, client.name))
    marked, parts, _ = survey_files(tables)
    return SiteTables([*marked.values()], parts)


def _schema_of(client: ClientSettings, text: str) -> Schema:
    """Return a schema as the device's files have it."""
    return parse_schema(with_files(text, client.files, client.name))


def _paths_of(client: ClientSettings) -> list[Path]:
    if not client.data_dir:
        raise DeployError("data-dir is missing, so the device has no tables: set it in owner.toml")
    place = place_of(client.data_dir, client.name)
    return [*chain(*files_in(place, TASKS["csv"].reads, of_one=True).values())]


def lock_sent(client: ClientSettings) -> AbstractContextManager[None]:
    """Return a lock on what has left: two at once would not be compared with each other."""
    folder = Path(client.state_dir)
    make_folder(folder)
    return exclusive_lock(folder / "profiles.lock")


def show_site(client: ClientSettings, site: SiteTables) -> Iterator[str]:
    """Yield lines on what the tables hold and may have wrong, for their owner's eyes only."""
    profiles = site.profile()
    fields = {name: {client.name: each} for name, each in profiles.items()}
    yield from describe_own(compare(fields))
    for name, column in profiles.items():
        if column.identifier:
            yield f"{name}: it seems to name persons, rows or dates"
    if client.unit in ("", ROW):
        for name in _find_persons(client, site):
            yield (
                f"{name}: several rows have the same value: if it names a person, write unit ="
                f" {quote(name)} at the top of owner.toml; if not, not-persons = {quote([name])}"
            )


def _find_persons(client: ClientSettings, site: SiteTables) -> list[str]:
    """Return the columns that may name persons with several rows, except `not-persons`."""
    known = {*map(fold, client.not_persons)}
    found = [name for name, cells in site.columns.items() if may_name_persons(name, cells)]
    return [name for name in found if fold(name) not in known]


@dataclass(frozen=True, eq=False)
class Today:
    """A site's tables today, and what may leave of them by the device's book.

    `rows` are the rows of the snapshot's units, in its order.
    """

    site: SiteTables
    book: Sequence[Snapshot]
    snapshot: Snapshot
    rows: NDArray[np.intp]
    held: str

    @classmethod
    def of(cls, client: ClientSettings, site: SiteTables, day: str) -> Self:
        """Return what may leave today; raise FairbloomError if nothing may."""
        _check_may_leave(client, by_wire=False)
        _check_unit(client, site)
        state = Path(client.state_dir)
        limits = Limits.of(client.limits)
        rows = site.rows_of(client.unit)
        written, read = site.digest(rows, secret_of(state))
        book = read_book(state)
        names = sorted(map(fold, site.columns))
        now = Snapshot(
            number=len(book) + 1,
            day=day,
            floor=max(limits.min_rows, MIN_FLOOR),
            unit=client.unit,
            names=tuple(names),
            written=written,
            read=read,
        )
        try:
            chosen = choose_snapshot(book, now, limits.snapshots)
        except ValueError as error:
            raise DeployError(str(error)) from None
        units = rows if chosen.units is None else rows[chosen.units]
        return cls(site, book, chosen.snapshot, units, chosen.held)

    def again(self, release: Release) -> Chosen:
        """Return a release of the snapshot that goes again, with the reason, if rows changed."""
        note = f"{self.held} What left on {self.snapshot.day} goes again."
        return Chosen(self.snapshot, release, text_if(self.held, note))

    def check_new(self) -> None:
        """Raise DeployError if nothing that has not left before may leave."""
        if self.held:
            kinds = [release.kind for release in self.snapshot.releases]
            left = f" Of {self.snapshot.day} has left: {join_first(kinds)}."
            raise DeployError(self.held + text_if(kinds, left))


def _check_unit(client: ClientSettings, site: SiteTables) -> None:
    """Raise DeployError unless the owner has said whom a row is about, and the rows agree."""
    if client.unit == ROW:
        for name in _find_persons(client, site):
            raise DeployError(
                f'owner.toml says unit = "{ROW}", and several rows have the same {name!r}: write'
                f" unit = {quote(name)} at its top if it names a person. If it names none, write"
                f" not-persons = {quote([name])}"
            )
    if not client.unit:
        raise DeployError(
            'owner.toml does not say whom a row is about: write unit = "COLUMN" at its top, with'
            " the column that names each row's person, or unit ="
            f' "{ROW}" if each row is another person'
        )


def choose_letter(client: ClientSettings, site: SiteTables, day: str) -> Chosen:
    """Return the letter that may leave, of this `day`, as 2025-01-31, or an earlier one again.

    Raise FairbloomError if none may leave.
    """
    today = Today.of(client, site, day)
    for release in today.snapshot.releases:
        if release.kind == LETTER:
            return today.again(release)
    today.check_new()
    letter = letter_of(site, client.name, day, today.snapshot.floor, client.unit)
    named = [name for name, each in letter.columns.items() if not each.identifier]
    sources = [(fold(name),) for name in named]
    cells = [today.snapshot.read_of(source) for source in sources]
    release = Release(
        kind=LETTER,
        content="",
        columns=tuple(named),
        sources=tuple(sources),
        cells=_stack(cells),
    )
    every, _ = find_free(today.book, today.snapshot, release)
    showing = _find_showing(client, today, letter, every)
    held = [name for name in named if name not in every or name in showing]
    columns = dict(letter.columns)
    for name in held:
        del columns[name]
    if not columns:
        raise DeployError("of each column, few cells changed since a profile or a table left")
    content = encode_letter(replace(letter, columns=columns))
    decode_letter(content)  # what the server would refuse does not leave
    kept = replace(release.keep(columns, ()), content=content.decode())
    return Chosen(today.snapshot, kept, describe_held(held))


def _find_showing(
    client: ClientSettings, today: Today, letter: Letter, names: Sequence[str]
) -> set[str]:
    """Return the columns of a letter that would show few units, with the tables that left."""
    cells = today.site.take(today.rows)
    by_source = {fold(name): name for name in names}
    coded = dict[str, tuple[ColumnProfile, Coded]]()
    for name in names:
        column = letter.columns[name]
        coded[name] = column, Coded.of_letter(cells[name], column)
    no_classes = np.full(len(today.rows), ALL)
    showing = set[str]()
    for name in names:
        if Printed(letter.floor, coded[name], None, no_classes).tells:
            showing.add(name)
    for table in today.snapshot.releases:
        letters = SiteTable.decode(table.content.encode()).letters
        file = encode_files(_paths_of(client), client.name, _schema_of(client, table.schema))
        for field, sources in zip(table.columns, table.sources, strict=True):
            name = by_source.get(sources[0], "")
            if name:
                printed = _print_table(file, today.rows, letters, field)
                if Printed(letter.floor, coded[name], printed, table.classes).tells:
                    showing.add(name)
    return showing


def _print_table(
    file: EncodedFile, rows: NDArray[np.intp], letters: Mapping[str, Letter], field: str
) -> tuple[Mapping[str, ColumnProfile], Coded]:
    """Return what a table prints of a field, of all rows and by class, and the field's values."""
    printed = {
        name: letter.columns[field] for name, letter in letters.items() if field in letter.columns
    }
    values = file.columns[field][rows]
    return printed, Coded.of_table(file.schema.fields[field], values, printed[ALL])


def _stack(cells: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return np.stack(cells) if cells else np.empty((0, 0), np.uint32)


def describe_held(names: Sequence[str]) -> str:
    """Return a sentence on the columns that are not in a release, "" for none."""
    return text_if(
        names,
        f"Not in this one, as a difference would show few rows, or persons: {join_first(names)}.",
    )


def describe_letter(letter: Letter) -> Iterator[str]:
    """Yield lines on what a letter says."""
    yield f"{letter.rows} rows, unit {letter.unit}; all counts are multiples of {letter.floor}"
    for name, column in letter.columns.items():
        counts = {**column.values, **column.patterns}
        parts = [
            text_if(column.identifier, "only that it seems to name persons, rows, dates"),
            ", ".join(f"{value!r} {rows}" for value, rows in counts.items()),
            text_if(column.others, f"{column.others} others"),
            text_if(any(column.quantiles), f"quantiles {[*column.quantiles]}"),
            text_if(column.missing, f"{column.empty} missing"),
            ", ".join(each.kind for each in column.found),
        ]
        yield f"{name}: {'; '.join(filter(None, parts)) or 'nothing, for too few rows'}"


def send(client: ClientSettings, chosen: Chosen, out: Path | None = None) -> None:
    """Send a letter or a table to the server, or write a letter into a file.

    It is in the book before it leaves. Raise FairbloomError if it cannot leave.
    """
    _check_may_leave(client, by_wire=out is None)
    state = Path(client.state_dir)
    release = chosen.release
    if release not in chosen.snapshot.releases:
        enter(state, chosen.snapshot, release)
    content = release.content.encode()
    asked = "profile" if release.kind == LETTER else "table"
    sent = {asked: f"{len(release.columns)} columns, {out or client.server}"}
    open_log(state).note({"run": NO_RUN, "asked": asked, "sent": sent}, {})
    if out is not None:
        write_private(out, content)
    else:
        tell(client, Told(profile=content) if release.kind == LETTER else Told(table=content))


def send_yes(client: ClientSettings, day: str) -> None:
    """Tell the server that the owner has accepted a schema; of another answer nothing leaves.

    Raise FairbloomError if nothing may leave, or the server does not take it. Where no further
    answer may leave, the server learns that it cannot know.
    """
    _check_may_leave(client, by_wire=True)
    folder = Path(client.state_dir, FOLDER)
    make_folder(folder)
    since = str(date.fromisoformat(day) - YEAR)
    left = [path for path in sorted(folder.glob(ANSWER)) if path.read_text() > since]
    if len(left) >= MAX_ANSWERS:
        send_unknown(client)
        raise DeployError(f"{MAX_ANSWERS} answers on schemas have left in twelve months, the most")
    number = len([*folder.glob(ANSWER)])
    write_private(folder / f"{number:04}.answer", day.encode())
    open_log(Path(client.state_dir)).note(
        {"run": NO_RUN, "asked": "answer", "sent": {"accepts": "True"}}, {}
    )
    tell(client, Told(accepts=True))


def send_unknown(client: ClientSettings) -> None:
    """Tell the server that its last answer on a schema may be wrong; this is no answer.

    Raise FairbloomError if nothing may leave, or the server does not take it.
    """
    _check_may_leave(client, by_wire=True)
    open_log(Path(client.state_dir)).note(
        {"run": NO_RUN, "asked": "answer", "sent": {"accepts": "unknown"}}, {}
    )
    tell(client, Told(unknown=True))


def note_columns(client: ClientSettings, schema: str) -> None:
    """Keep which columns the device's files have by a schema that is accepted now."""
    if not client.data_dir or "classes" in counting_keys(schema):
        return
    with suppress(DataError):  # which is shown as a fault
        file = encode_files(_paths_of(client), client.name, _schema_of(client, schema))
        keep_columns(Path(client.state_dir), file.found)


def find_faults(client: ClientSettings, schema: str) -> Sequence[str]:
    """Return the faults of the device's own files by a schema, for their owner's eyes only.

    Raise DeployError if the schema has another unit than the owner has said.
    """
    if "classes" in counting_keys(schema):  # of images
        return ()
    parsed = _schema_of(client, schema)
    names = parsed.file("", client.name).names_of(parsed.unit) if parsed.unit else (ROW,)
    if client.unit and fold(client.unit) not in map(fold, names):
        raise DeployError(
            f"the schema's unit is {' or '.join(names)}, and owner.toml says unit ="
            f" {client.unit!r}: numbers would count other persons than a profile. Say which column"
            f' it is by fields.{parsed.unit or "UNIT"}.name under [files."*"], or change the schema'
        )
    if not client.data_dir:
        return ()
    try:
        return [*map(str, encode_files(_paths_of(client), client.name, parsed).faults)]
    except DataError as error:
        return [str(error)]


def choose_table(client: ClientSettings, schema: str, day: str) -> Chosen:
    """Return the table of the rows by a schema that may leave, or an earlier one again.

    Raise FairbloomError if none may leave.
    """
    limits = Limits.of(client.limits)
    if limits.describe == "off":
        raise DeployError(
            'limits.describe is "off", so no table of the rows leaves: write describe = "counts" or'
            ' "all" under [limits] in owner.toml'
        )
    today = Today.of(client, read_site(client), day)
    snapshot = today.snapshot
    tables = [each for each in snapshot.releases if each.kind == TABLE]
    for release in tables:
        if release.schema == schema:
            return today.again(release)
    today.check_new()
    faults = find_faults(client, schema)
    if faults:
        raise DeployError(
            f"{len(faults)} faults, which client data shows: the first is {faults[0]}"
        )
    file = encode_files(_paths_of(client), client.name, _schema_of(client, schema))
    if len(tables) >= MAX_TABLES or any(each.target != file.schema.target for each in tables):
        raise DeployError(
            f"{len(tables)} tables of the same rows have left, of the target"
            f" {tables[0].target!r}: {MAX_TABLES} of one target are the most"
        )
    release = _release_of(client, today, file, schema)
    about = Letter(
        client=client.name,
        date=day,
        floor=snapshot.floor,
        unit=client.unit,
        formats=(),
        rows=0,
        columns={},
    )
    letters = describe_rows(file, today.rows, about, with_numbers=limits.describe == "all")
    every, by_class = find_free(today.book, snapshot, release)
    free = release.keep({*every} - find_parted(snapshot, release), by_class)
    lone = {*find_lone(file, today.rows, release.classes, snapshot.floor)}
    free = free.keep(free.columns, {*free.by_class} - lone)
    free = _keep_untold(today, file, letters, free)
    if not free.columns:
        raise DeployError("of each column, few cells changed since a profile or a table left")
    table = SiteTable(digest_of(schema), keep_fields(letters, free.columns, free.by_class))
    held = [name for name in release.columns if name not in free.columns]
    release = replace(free, content=table.encode().decode())
    return Chosen(snapshot, release, describe_held(held))


def _release_of(client: ClientSettings, today: Today, file: EncodedFile, schema: str) -> Release:
    """Return the release of a table with all columns, without its content."""
    secret = secret_of(Path(client.state_dir))
    sources = list[tuple[str, ...]]()
    cells = list[NDArray[np.uint32]]()
    for name in file.found:
        about = file.schema.fields[name]
        files = [file.schema.file(path.name, client.name) for path in file.paths]
        own = dict.fromkeys(fold(each) for one in files for each in (*one.names_of(name), name))
        sources.append(tuple(each for each in own if each in today.snapshot.names))
        values = file.columns[name][today.rows]
        read = today.snapshot.read_of(sources[-1])
        if about.categories:
            read = digest_values(map(read_value, about.categories), secret)[np.maximum(values, 0)]
        given = np.where(is_missing(values), 0, read)
        cells.append(given.astype(np.uint32))
    return Release(
        kind=TABLE,
        content="",
        columns=tuple(file.found),
        sources=tuple(sources),
        cells=np.stack(cells),
        by_class=tuple(file.found),
        schema=schema,
        target=file.schema.target,
        classes=name_classes(file, today.rows),
    )


def _keep_untold(
    today: Today, file: EncodedFile, letters: Mapping[str, Letter], release: Release
) -> Release:
    """Return a table without what would show few units, together with a letter that left.

    Some columns stay for all units, and leave each class.
    """
    floor = today.snapshot.floor
    cells = today.site.take(today.rows)
    left = dict[str, tuple[ColumnProfile, Coded]]()
    for sent in today.snapshot.releases:
        if sent.kind == LETTER:
            columns = decode_letter(sent.content.encode()).columns
            for name, (source,) in zip(sent.columns, sent.sources, strict=True):
                coded = Coded.of_letter(cells[name], columns[name])
                left[source] = columns[name], coded
    every = list[str]()
    by_class = list[str]()
    for name, sources in zip(release.columns, release.sources, strict=True):
        printed, coded = _print_table(file, today.rows, letters, name)
        letter = left.get(sources[0])
        if (
            name in release.by_class
            and not Printed(floor, letter, (printed, coded), release.classes).tells
        ):
            by_class.append(name)
            every.append(name)
        elif not Printed(floor, letter, ({ALL: printed[ALL]}, coded), release.classes).tells:
            every.append(name)
    return release.keep(every, by_class)


def describe_sent(client: ClientSettings) -> Iterator[str]:
    """Yield a line on each profile and table that has left, and on the answers."""
    book = read_book(Path(client.state_dir))
    if not book:
        yield "no profile and no table of the rows has left this device, by its book"
    for snapshot in book:
        for release in snapshot.releases:
            kind = "a profile" if release.kind == LETTER else "a table"
            yield (
                f"{kind} of {len(release.columns)} columns, of {snapshot.read.shape[1]} rows or"
                f" persons on {snapshot.day}, has left: an account does not count it"
            )
    answers = len([*Path(client.state_dir, FOLDER).glob(ANSWER)])
    if answers:
        yield f"{answers} {plural(answers, 'answer', 'answers')} on schemas left"


def _check_may_leave(client: ClientSettings, *, by_wire: bool) -> None:
    fault = connection_fault(client) if by_wire else ""
    if fault:
        raise DeployError(fault)
    if client.data_dir and Known.of(client.node(), client.data_dir).has_account:
        raise DeployError(
            "a privacy account is open for these data, and it counts all that leaves: no profile"
            " and no answer leaves any more; send the operator what a schema needs from a codebook"
        )

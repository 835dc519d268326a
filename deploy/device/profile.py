"""Profiles of a device's tables: what its owner sees, and what leaves."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean
from fairbloom.system.versions import FOLDER, secret_of
from fairbloom.tables.audit import Coded, Printed
from fairbloom.tables.column_laws import Drafted, draft_column
from fairbloom.tables.comparison import compare
from fairbloom.tables.encoding import encode_files
from fairbloom.tables.findings import join_own
from fairbloom.tables.letters import (
    ROW,
    Letter,
    SiteTables,
    add_own,
    decode_letter,
    encode_letter,
    is_identifier,
    letter_of,
    write_own_lines,
)
from fairbloom.tables.own_codes import find_own_codes
from fairbloom.tables.releases import ALL, LETTER, MAX_LETTERS, Release, find_free, find_shared
from fairbloom.tables.schema import EVERY_FILE, FileField, fold, parse_files, parse_schema
from fairbloom.tables.site_table import SiteTable
from fairbloom.tables.toml import quote
from fairbloom.text import join_first, plural, text_if

from ..errors import DeployError
from .answers import ANSWER
from .book import read_book
from .client import ClientSettings
from .table import code_letters, find_letters, print_table
from .today import Chosen, Reading, Today, describe_held, find_persons, paths_of

# Why a profile is not of the columns as they are read now.
READ_ANEW = (
    "Since then owner.toml, or the accepted schema, says otherwise how columns are read: a profile"
    " that has it may leave once enough rows have changed."
)


def show_site(client: ClientSettings, site: SiteTables, target: str = "") -> Iterator[str]:
    """Yield lines on what the tables hold and may have wrong, for their owner's eyes only.

    A `target` shows which numbers act as names. Raise DeployError if no table has such a
    column.
    """
    profiles = site.profile()
    fields = {name: {client.name: each} for name, each in profiles.items()}
    schema = parse_files(Reading.of(client).text)
    owner = schema.files[EVERY_FILE] if EVERY_FILE in client.files else None
    findings = compare(fields)
    for each in findings:
        yield f"{each.field}: {each.say()}"
    added = add_own(findings, schema.fields)
    for name, column in profiles.items():
        if column.identifier:
            yield f"{name}: it seems to name persons, rows or dates"
        elif not column.quantiles:
            unit = _find_unit(name, site)
            if unit:
                said = f"each cell has its unit, as {unit!r}"
                yield f"{name}: {said}; to have a profile of numbers, say so"
                added[name] = join_own(added.get(name, FileField()), FileField(unit=unit))
    yield from write_own_lines(added, owner)
    yield from _ask_about_codes(client, site, target)
    if client.unit in ("", ROW):
        for name in find_persons(client, site):
            yield (
                f"{name}: several rows have the same value: if it names a person, write unit ="
                f" {quote(name)} at the top of owner.toml; if not, not-persons = {quote([name])}"
            )


def _find_unit(name: str, site: SiteTables) -> str:
    """Return the unit in the cells of a column of texts that are numbers, or ages; "" for none."""
    drafted = draft_column(name, site.read[name])
    return drafted.field.unit if isinstance(drafted, Drafted) else ""


def _ask_about_codes(client: ClientSettings, site: SiteTables, target: str) -> Iterator[str]:
    """Yield questions on columns with numbers that may be codes."""
    columns = site.take(site.rows_of(client.unit or ROW))
    named = [name for name in columns if fold(name) == fold(target)]
    if target and not named:
        known = join_first([*columns])
        raise DeployError(
            f"--target = {target!r}: {did_you_mean(target, columns)}name one of {known}"
        )
    shown = {
        name: column for name, column in columns.items() if not is_identifier(name, column)
    } | {name: columns[name] for name in named}
    for name, why in find_own_codes(shown, *named):
        yield f"{name}: {why}: if they are, tell the operator that it needs categories"


def choose_letter(client: ClientSettings, site: SiteTables, day: str) -> Chosen:
    """Return the letter that may leave, of this `day`, as 2025-01-31, or an earlier one again.

    Raise FairbloomError if none may leave.
    """
    today = Today.of(client, site, day)
    reading = Reading.of(client).text
    left = [release for release in today.snapshot.releases if release.kind == LETTER]
    for release in left:
        if release.reading == reading:
            return today.again(release)
    if left and (today.held or len(left) >= MAX_LETTERS):
        return today.again(left[-1], READ_ANEW)
    today.check_new()
    letter = letter_of(site, client.name, day, today.snapshot.floor, client.unit)
    named = [name for name, each in letter.columns.items() if not each.identifier]
    secret = secret_of(Path(client.state_dir))
    cells = [site.digest_read(name, today.rows, secret) for name in named]
    release = Release(
        kind=LETTER,
        content="",
        columns=tuple(named),
        sources=tuple(site.sources[name] for name in named),
        cells=_stack(cells),
        reading=reading,
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
    """Return the columns of a letter that would show few units, with what left of the snapshot."""
    site = today.site
    cells = site.take(today.rows)
    coded = [*code_letters(client, today)]
    for name in names:
        column = letter.columns[name]
        coded.append((site.sources[name], (column, Coded.of_letter(cells[name], column))))
    no_classes = np.full(len(today.rows), ALL)
    showing = set[str]()
    for name in names:
        if Printed(letter.floor, find_letters(coded, site.sources[name]), None, no_classes).tells:
            showing.add(name)
    for table in today.tables:
        letters = SiteTable.decode(table.content.encode()).letters
        file = encode_files(paths_of(client), client.name, parse_schema(table.reading))
        showing |= site.name_all(find_shared(table)).intersection(names)
        for field, sources in zip(table.columns, table.sources, strict=True):
            own = site.name_all(sources).intersection(names)
            printed = print_table(file, today.rows, letters, field)
            columns = find_letters(coded, sources)
            if own and Printed(letter.floor, columns, printed, table.classes).tells:
                showing |= own
    return showing


def _stack(cells: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return np.stack(cells) if cells else np.empty((0, 0), np.uint32)


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

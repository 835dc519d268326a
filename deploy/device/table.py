"""Tables of a device's rows by a schema: which may leave, and without which columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.guard.accepted_schemas import digest_of
from fairbloom.client.guard.limits import Limits
from fairbloom.system.versions import secret_of
from fairbloom.tables.audit import Coded, Printed
from fairbloom.tables.encoding import EncodedFile, encode_files, is_missing
from fairbloom.tables.letters import Letter, decode_letter, digest_values, read_value
from fairbloom.tables.profiles import ColumnProfile
from fairbloom.tables.releases import (
    ALL,
    LETTER,
    MAX_TABLES,
    TABLE,
    Release,
    find_free,
    find_parted,
    find_shared,
)
from fairbloom.tables.schema import fold, parse_schema, with_files
from fairbloom.tables.site_table import (
    SiteTable,
    describe_rows,
    find_lone,
    keep_fields,
    name_classes,
)

from ..errors import DeployError
from .answers import find_faults
from .client import ClientSettings
from .today import Chosen, Today, describe_held, paths_of, read_site_by


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
    reading = with_files(schema, client.files, client.name)
    today = Today.of(client, read_site_by(client, reading), day)
    snapshot = today.snapshot
    tables = today.tables
    for release in tables:
        if release.schema == schema:
            return today.again(release)
    today.check_new()
    faults = find_faults(client, schema)
    if faults:
        raise DeployError(
            f"{len(faults)} faults, which client data shows: the first is {faults[0]}"
        )
    file = encode_files(paths_of(client), client.name, parse_schema(reading))
    if len(tables) >= MAX_TABLES or any(each.target != file.schema.target for each in tables):
        raise DeployError(
            f"{len(tables)} tables of the same rows have left, of the target"
            f" {tables[0].target!r}: {MAX_TABLES} of one target are the most"
        )
    release = replace(_release_of(client, today, file, schema), reading=reading)
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
    free = _keep_untold(client, today, file, letters, free)
    if not free.columns:
        raise DeployError("of each column, few cells changed since a profile or a table left")
    table = SiteTable(digest_of(schema), keep_fields(letters, free.columns, free.by_class))
    held = [name for name in release.columns if name not in free.columns]
    release = replace(free, content=table.encode().decode())
    return Chosen(snapshot, release, describe_held(held))


def _release_of(client: ClientSettings, today: Today, file: EncodedFile, schema: str) -> Release:
    """Return the release of a table with all columns, without its content."""
    secret = secret_of(Path(client.state_dir))
    tables = [
        replace(table, file=file.schema.file(table.path.name, client.name))
        for table in today.site.tables
    ]
    sources = list[tuple[str, ...]]()
    cells = list[NDArray[np.uint32]]()
    for name in file.found:
        about = file.schema.fields[name]
        own = [fold(each) for table in tables for each in table.own_names(name)]
        sources.append(tuple(dict.fromkeys(own)))
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
    client: ClientSettings,
    today: Today,
    file: EncodedFile,
    letters: Mapping[str, Letter],
    release: Release,
) -> Release:
    """Return a table without what would show few units, together with letters that left.

    Some columns stay for all units, and leave each class.
    """
    shared = find_shared(release)
    floor = today.snapshot.floor
    left = code_letters(client, today)
    every = list[str]()
    by_class = list[str]()
    for name, sources in zip(release.columns, release.sources, strict=True):
        if any(not shared.isdisjoint(own) and not {*own}.isdisjoint(sources) for own, _ in left):
            continue
        printed, coded = print_table(file, today.rows, letters, name)
        of_letters = find_letters(left, sources)
        if (
            name in release.by_class
            and not Printed(floor, of_letters, (printed, coded), release.classes).tells
        ):
            by_class.append(name)
            every.append(name)
        elif not Printed(floor, of_letters, ({ALL: printed[ALL]}, coded), release.classes).tells:
            every.append(name)
    return release.keep(every, by_class)


# The columns of letters that left: their files' columns, the profile, and the cells as it has them.
CodedLetters = Sequence[tuple[Collection[str], tuple[ColumnProfile, Coded]]]


def code_letters(client: ClientSettings, today: Today) -> CodedLetters:
    """Return the columns of the snapshot's letters, as the files were read for each."""
    coded = list[tuple[Collection[str], tuple[ColumnProfile, Coded]]]()
    for sent in today.snapshot.releases:
        if sent.kind != LETTER:
            continue
        cells = read_site_by(client, sent.reading).take(today.rows)
        by_name = {fold(name): column for name, column in cells.items()}
        profiles = decode_letter(sent.content.encode()).columns
        for name, sources in zip(sent.columns, sent.sources, strict=True):
            as_read = Coded.of_letter(by_name[fold(name)], profiles[name])
            coded.append((sources, (profiles[name], as_read)))
    return coded


def find_letters(left: CodedLetters, sources: Collection[str]) -> list[tuple[ColumnProfile, Coded]]:
    """Return the columns of letters that are read from some of these columns of the files."""
    return [coded for own, coded in left if not {*own}.isdisjoint(sources)]


def print_table(
    file: EncodedFile, rows: NDArray[np.intp], letters: Mapping[str, Letter], field: str
) -> tuple[Mapping[str, ColumnProfile], Coded]:
    """Return what a table prints of a field, of all rows and by class, and the field's values."""
    printed = {
        name: letter.columns[field] for name, letter in letters.items() if field in letter.columns
    }
    values = file.columns[field][rows]
    return printed, Coded.of_table(file.schema.fields[field], values, printed[ALL])

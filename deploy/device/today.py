"""A device's tables today, and what may leave of them.

What has left is in the device's book (`book`), and `tables.releases` has the law of what may follow
it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.guard.accepted_schemas import Schemas, counting_keys
from fairbloom.client.guard.limits import Limits
from fairbloom.client.guard.log_entries import NO_RUN
from fairbloom.client.guard.log_files import open_log
from fairbloom.client.private.account import Known
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.versions import secret_of
from fairbloom.tables.folders import files_in, place_of
from fairbloom.tables.identifiers import may_name_persons
from fairbloom.tables.inference import survey_files
from fairbloom.tables.letters import MIN_FLOOR, ROW, Letter, SiteTables, decode_letter
from fairbloom.tables.reading import ReadTable, read
from fairbloom.tables.releases import LETTER, TABLE, Release, Snapshot, choose_snapshot
from fairbloom.tables.schema import (
    Schema,
    files_alone,
    fold,
    parse_files,
    parse_schema,
    with_files,
)
from fairbloom.tables.site_table import SiteTable
from fairbloom.tables.toml import quote
from fairbloom.tasks.catalogue import TASKS
from fairbloom.text import join_first, text_if

from ..errors import DeployError
from ..fleet.client import tell
from ..fleet.wire_pb2 import Told
from .book import enter, read_book
from .client import ClientSettings
from .connectivity import connection_fault


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


@dataclass(frozen=True)
class Reading:
    """How a device reads its files.

    Attributes
    ----------
    schema
        The digest of the schema that its owner accepted last, "" without one.
    text
        That schema with what the owner says of the files, or only this.
    """

    schema: str
    text: str

    @classmethod
    def of(cls, client: ClientSettings) -> Self:
        """Return how a device reads its files today."""
        schemas = Schemas(Path(client.state_dir))
        for known in reversed(schemas.accepted()):
            text = schemas.text_of(known)
            if "classes" not in counting_keys(text):  # of images
                return cls(known.digest, with_files(text, client.files, client.name))
        return cls("", files_alone(client.files, client.name))


def read_site(client: ClientSettings) -> SiteTables:
    """Return the tables of a device, as its owner and the accepted schema describe them."""
    reading = Reading.of(client)
    return replace(read_site_by(client, reading.text), schema=reading.schema)


def read_site_by(client: ClientSettings, reading: str) -> SiteTables:
    """Return the tables of a device by the text of a `Reading`."""
    schema = parse_files(reading)
    tables: dict[Path, ReadTable] = {}
    for path in paths_of(client):
        tables[path] = read(path, schema.file(path.name, client.name))
    marked, parts, _ = survey_files(tables)
    return SiteTables.of([*marked.values()], parts, schema)


def schema_of(client: ClientSettings, text: str) -> Schema:
    """Return a schema as the device's files have it."""
    return parse_schema(with_files(text, client.files, client.name))


def paths_of(client: ClientSettings) -> list[Path]:
    """Return the files of a device's tables; raise DeployError if it has no folder of them."""
    if not client.data_dir:
        raise DeployError("data-dir is missing, so the device has no tables: set it in owner.toml")
    place = place_of(client.data_dir, client.name)
    return [*chain(*files_in(place, TASKS["csv"].reads, of_one=True).values())]


def lock_sent(client: ClientSettings) -> AbstractContextManager[None]:
    """Return a lock on what has left: two at once would not be compared with each other."""
    folder = Path(client.state_dir)
    make_folder(folder)
    return exclusive_lock(folder / "profiles.lock")


def find_persons(client: ClientSettings, site: SiteTables) -> list[str]:
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
        check_may_leave(client, by_wire=False)
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

    @property
    def tables(self) -> Sequence[Release]:
        """The tables of the snapshot that have left."""
        return [each for each in self.snapshot.releases if each.kind == TABLE]

    def again(self, release: Release, held: str = "") -> Chosen:
        """Return a release of the snapshot that goes again, with the reason if it is an older one.

        `held` is the reason, if it is not that of the rows.
        """
        why = self.held or held
        note = f"{why} What left on {self.snapshot.day} goes again."
        return Chosen(self.snapshot, release, text_if(why, note))

    def check_new(self) -> None:
        """Raise DeployError if nothing that has not left before may leave."""
        if self.held:
            kinds = [release.kind for release in self.snapshot.releases]
            left = f" Of {self.snapshot.day} has left: {join_first(kinds)}."
            raise DeployError(self.held + text_if(kinds, left))


def _check_unit(client: ClientSettings, site: SiteTables) -> None:
    """Raise DeployError unless the owner has said whom a row is about, and the rows agree."""
    if client.unit == ROW:
        for name in find_persons(client, site):
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


def check_may_leave(client: ClientSettings, *, by_wire: bool) -> None:
    """Raise DeployError if an account is open, or by wire the device has no way to the server."""
    fault = connection_fault(client) if by_wire else ""
    if fault:
        raise DeployError(fault)
    if client.data_dir and Known.of(client.node(), client.data_dir).has_account:
        raise DeployError(
            "a privacy account is open for these data, and it counts all that leaves: no profile"
            " and no answer leaves any more; send the operator what a schema needs from a codebook"
        )


def describe_held(names: Sequence[str]) -> str:
    """Return a sentence on the columns that are not in a release, "" for none."""
    return text_if(
        names,
        f"Not in this one, as a difference would show few rows, or persons: {join_first(names)}.",
    )


def send(client: ClientSettings, chosen: Chosen, out: Path | None = None) -> None:
    """Send a letter or a table to the server, or write a letter into a file.

    It is in the book before it leaves. Raise FairbloomError if it cannot leave.
    """
    check_may_leave(client, by_wire=out is None)
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

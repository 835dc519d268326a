"""The profile of a device's tables: what its owner sees, and what leaves once the owner agrees.

In the state folder, `profiles` has a file for each letter and each answer on a schema that has
left. A letter lies there with the digests of its cells: where a new one would differ from it by
fewer rows than the floor, the difference would show them, and the earlier one goes again.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.guard.accepted_schemas import SHOWN, counting_keys, digest_of
from fairbloom.client.guard.limits import Limits
from fairbloom.client.guard.log_entries import NO_RUN
from fairbloom.client.guard.log_files import open_log
from fairbloom.client.private.account import Known
from fairbloom.system.files import make_folder, write_private
from fairbloom.system.lock import exclusive_lock
from fairbloom.system.versions import FOLDER, read_kept, secret_of, write_kept
from fairbloom.tables.comparison import compare
from fairbloom.tables.encoding import encode_files
from fairbloom.tables.folders import files_in, place_of
from fairbloom.tables.identifiers import may_name_persons
from fairbloom.tables.inference import survey_files
from fairbloom.tables.letters import (
    MIN_FLOOR,
    ROW,
    Letter,
    SiteTables,
    count_changed,
    decode_letter,
    describe_own,
    encode_letter,
    letter_of,
)
from fairbloom.tables.reading import ReadTable, read
from fairbloom.tables.reasons import DataError
from fairbloom.tables.schema import Schema, fold, parse_schema, with_files
from fairbloom.tables.site_table import ALL, SiteTable, describe_rows
from fairbloom.tables.toml import quote
from fairbloom.tasks.catalogue import TASKS
from fairbloom.tasks.sides import keep_columns
from fairbloom.text import plural, text_if

from ..errors import DeployError
from ..fleet.client import tell
from ..fleet.wire_pb2 import Told
from .client import ClientSettings
from .connectivity import connection_fault

# The letters and tables in the folder of what is kept of rows; other files with a number are
# answers.
LETTER = "*.letter"
TABLE = "*.table"


@dataclass(frozen=True, eq=False)
class SentLetter:
    """A letter that may leave or has left, the digests of its cells, and why it is this one."""

    letter: Letter
    digests: NDArray[np.uint32]
    note: str = ""


@dataclass(frozen=True, eq=False)
class SentTable:
    """A table that may leave or has left, and the digests of the cells of these columns."""

    table: SiteTable
    columns: Sequence[str]
    digests: NDArray[np.uint32]


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


def choose_letter(client: ClientSettings, site: SiteTables, day: str) -> SentLetter:
    """Return the letter that may leave, of this `day`, as 2025-01-31, or an earlier one again.

    Raise FairbloomError if none may leave.
    """
    _count_sent(client)
    _check_unit(client, site)
    floor = max(Limits.of(client.limits).min_rows, MIN_FLOOR)
    letter = letter_of(site, client.name, day, floor, client.unit)
    decode_letter(encode_letter(letter))  # what the server would refuse does not leave
    secret = secret_of(Path(client.state_dir))
    rows = site.rows_of(client.unit)
    # most letters have the same columns, and digests of large tables take seconds
    digest = cache(lambda names: site.digest(rows, secret, names))
    for earlier in reversed([*_read_sent(client, secret)]):
        before = earlier.letter
        is_other = (before.floor, before.unit) != (floor, client.unit)
        # in the earlier columns: a new one would make all rows new
        counts = count_changed(earlier.digests, digest(tuple(before.columns)))
        used = counts if is_other else [each for each in counts if each]
        changed = min(used, default=floor)
        if changed >= max(floor, before.floor):
            continue
        if is_other:
            raise DeployError(
                f"a profile of {before.date}, with limits.rows = {before.floor} and unit ="
                f" {before.unit!r}, has left, and {changed} rows changed since: two floors of the"
                f" same rows show exact counts. Set both back, or wait until {floor} have changed"
            )
        return replace(
            earlier,
            letter=replace(before, client=client.name),
            note=f"Only {changed} rows changed since the profile of {before.date}, and the"
            " difference would show them: that one goes again.",
        )
    return SentLetter(letter, digest(tuple(letter.columns)))


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


def send(client: ClientSettings, chosen: SentLetter, out: Path | None) -> None:
    """Write a letter into a file, or send it to the server; raise FairbloomError if it cannot.

    It counts as one that has left before it leaves.
    """
    number = _count_sent(client, by_wire=out is None)
    content = encode_letter(chosen.letter)
    write_kept(
        _folder_of(client) / f"{number:04}.letter",
        b"\n".join([content, chosen.digests.tobytes()]),
        secret_of(Path(client.state_dir)),
    )
    open_log(Path(client.state_dir)).note(
        {
            "run": NO_RUN,
            "asked": "profile",
            "sent": {"profile": f"{len(chosen.letter.columns)} columns, {out or client.server}"},
        },
        {},
    )
    if out is None:
        tell(client, Told(profile=content))
    else:
        write_private(out, content)


class NoMoreError(DeployError):
    """So many profiles and answers have left that no further one may."""


def send_answer(client: ClientSettings, accepts: bool) -> None:
    """Tell the server whether the owner has accepted a schema, and nothing more.

    Raise FairbloomError if nothing may leave, or the server does not take it. Where no further
    answer may leave, the server learns that it cannot tell.
    """
    try:
        number = _count_sent(client, by_wire=True)
    except NoMoreError:
        send_unknown(client)
        raise
    write_private(_folder_of(client) / f"{number:04}.answer", b"")
    open_log(Path(client.state_dir)).note(
        {"run": NO_RUN, "asked": "answer", "sent": {"accepts": str(accepts)}}, {}
    )
    tell(client, Told(accepts=accepts))


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


def choose_table(client: ClientSettings, schema: str, day: str) -> tuple[SentTable, str]:
    """Return the table of the rows by a schema that may leave, and a note on why it is this one.

    Raise FairbloomError if none may leave.
    """
    _count_sent(client)
    limits = Limits.of(client.limits)
    if limits.describe == "off":
        raise DeployError(
            'limits.describe is "off", so no table of the rows leaves: write describe = "counts" or'
            ' "all" under [limits] in owner.toml'
        )
    site = read_site(client)
    _check_unit(client, site)
    if faults := find_faults(client, schema):
        raise DeployError(
            f"{len(faults)} faults, which client data shows: the first is {faults[0]}"
        )
    secret = secret_of(Path(client.state_dir))
    rows = site.rows_of(client.unit)
    floor = max(limits.min_rows, MIN_FLOOR)
    names = tuple(site.columns)
    for earlier in reversed([*_read_tables(client, secret)]):
        counts = count_changed(earlier.digests, site.digest(rows, secret, earlier.columns))
        # as of letters: a column that was written anew hides no change of the others
        changed = min(filter(None, counts), default=0)
        if changed >= floor:
            break
        if earlier.table.schema != digest_of(schema):
            raise DeployError(
                f"a table by another schema has left, and {changed} rows changed since: the"
                " difference of two schemas would show the people between their categories"
            )
        return earlier, f"Only {changed} rows changed since: the earlier table goes again.\n"
    about = Letter(
        client=client.name, date=day, floor=floor, unit=client.unit, formats=(), rows=0, columns={}
    )
    file = encode_files(_paths_of(client), client.name, _schema_of(client, schema))
    letters = describe_rows(file, about, with_numbers=limits.describe == "all")
    return SentTable(
        SiteTable(digest_of(schema), letters), names, site.digest(rows, secret, names)
    ), ""


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


def send_table(client: ClientSettings, chosen: SentTable) -> None:
    """Send a table to the server; it counts as one that has left before it leaves."""
    number = _count_sent(client, by_wire=True)
    content = chosen.table.encode()
    parts = [content, json.dumps(chosen.columns).encode(), chosen.digests.tobytes()]
    write_kept(
        _folder_of(client) / f"{number:04}.table",
        b"\n".join(parts),
        secret_of(Path(client.state_dir)),
    )
    open_log(Path(client.state_dir)).note(
        {"run": NO_RUN, "asked": "table", "sent": {"table": chosen.table.schema[:SHOWN]}}, {}
    )
    tell(client, Told(table=content))


def _read_tables(client: ClientSettings, secret: bytes) -> Iterator[SentTable]:
    """Yield the tables that have left, in order; raise DeployError for a damaged one."""
    for content, columns, digests in _read_parts(client, TABLE, secret, 2):
        names = json.loads(columns)
        numbers = np.frombuffer(digests, np.uint32).reshape(-1, len(names))
        yield SentTable(SiteTable.decode(content), names, numbers)


def describe_sent(client: ClientSettings) -> Iterator[str]:
    """Yield a line on each profile and table that has left the device, and on the answers."""
    secret = secret_of(Path(client.state_dir))
    sent = [("profile", each.letter) for each in _read_sent(client, secret)]
    sent += [("table", each.table.letters[ALL]) for each in _read_tables(client, secret)]
    for kind, letter in sent:
        yield (
            f"a {kind} of {len(letter.columns)} columns, of {letter.date}, has left: an account"
            " does not count what it says"
        )
    if not sent:
        yield "no profile and no table of the rows has left this device"
    answers = len([*_folder_of(client).glob("*.answer")])
    if answers:
        yield f"{answers} {plural(answers, 'answer', 'answers')} on schemas left"


def _count_sent(client: ClientSettings, *, by_wire: bool = False) -> int:
    """Return how many letters and answers have left.

    Raise DeployError if no more may, or can; NoMoreError at the owner's limit.
    """
    _check_may_leave(client, by_wire=by_wire)
    folder = _folder_of(client)
    make_folder(folder)
    number = len([*folder.glob("[0-9]*")])
    if number >= (most := Limits.of(client.limits).profiles):
        raise NoMoreError(
            f"{number} profiles and answers have left this device, and limits.profiles = {most} is"
            " the most: use an earlier one, or raise the limit in owner.toml"
        )
    return number


def _check_may_leave(client: ClientSettings, *, by_wire: bool) -> None:
    if by_wire and (fault := connection_fault(client)):
        raise DeployError(fault)
    if client.data_dir and Known.of(client.node(), client.data_dir).has_account:
        raise DeployError(
            "a privacy account is open for these data, and it counts all that leaves: no profile"
            " and no answer leaves any more; send the operator what a schema needs from a codebook"
        )


def _folder_of(client: ClientSettings) -> Path:
    return Path(client.state_dir, FOLDER)


def _read_sent(client: ClientSettings, secret: bytes) -> Iterator[SentLetter]:
    """Yield the letters that have left, in order; raise ReportableError for a damaged one."""
    for content, digests in _read_parts(client, LETTER, secret, 1):
        letter = decode_letter(content)
        yield SentLetter(letter, np.frombuffer(digests, np.uint32).reshape(-1, len(letter.columns)))


def _read_parts(
    client: ClientSettings, files: str, secret: bytes, lines: int
) -> Iterator[list[bytes]]:
    """Yield the parts of what has left, in order: this many lines, and the rest."""
    loss = "without it a new profile may show single rows. Bring the state-dir back from a copy"
    for path in sorted(_folder_of(client).glob(files)):
        yield read_kept(path, secret, loss).split(b"\n", lines)

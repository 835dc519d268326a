"""Compare the profiles of clients, and draft the schema of all: no data meet."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

from fairbloom.client.guard.accepted_schemas import digest_of
from fairbloom.logs import escape_unprintable
from fairbloom.system.files import read_small, write_whole
from fairbloom.tables.cells import parse_number
from fairbloom.tables.comparison import Alike, Named, Wording
from fairbloom.tables.findings import IF_SO, Change, Finding, Quiet, spell
from fairbloom.tables.inference import Draft, Wanted, draft
from fairbloom.tables.letters import (
    NUMBER,
    ROW,
    USUAL,
    Letter,
    decode_letter,
    describe,
    stand_ins,
)
from fairbloom.tables.reading import ReadTable
from fairbloom.tables.reasons import DataError
from fairbloom.tables.releases import ALL
from fairbloom.tables.schema import (
    EVERY_FILE,
    MAX_TEXT,
    SCHEMA_NAME,
    Field,
    FileField,
    Schema,
    SchemaFile,
    check_schema,
    fold,
    parse_schema,
    squash,
    squash_apart,
)
from fairbloom.tables.site_table import SiteTable
from fairbloom.tables.toml import quote, write_fields, write_key, write_keys, write_own
from fairbloom.tasks.targets import POSITIVE_WORDS
from fairbloom.text import join_first, text_if

from ..errors import DeployError
from ..fleet.federation import Federation
from ..fleet.profiles import FOLDER, TABLE, find_letter

# The heading of what owner.toml says of all files of a device.
FILES = f'[files."{EVERY_FILE}"]'

# Findings that are printed.
MOST = 10

# Characters of the fault of a letter or table that are printed.
LONGEST_FAULT = 300

T = TypeVar("T")


@dataclass
class Received(Generic[T]):
    """What clients have sent of one kind, by client, and a sentence on each that is left out."""

    usable: dict[str, T] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read_letters(federation: Federation, files: Sequence[Path]) -> Received[Letter]:
    """Return the newest letter of each enrolled client, or the one in `files`.

    Raise DeployError if no letter has rows, or one of `files` cannot be opened.
    """
    received = Received[Letter]()
    for member in federation.enrolled():
        path = find_letter(federation.path, member.name)
        if path is not None:
            _read(received, path, member.name, _decode_letter)
    for path in files:
        try:
            path.open().close()
        except OSError as error:
            raise DeployError(f"{path} cannot be opened: {error.strerror}") from error
        _read(received, path, "", _decode_letter)
    if not any(letter.rows for letter in received.usable.values()):
        raise DeployError(
            "no client has sent a profile of at least limits.rows rows: its owner sends one by"
            " fairbloom client profile client.toml, or writes it by --out FILE, for you to name"
            + "".join(f". {each}" for each in received.left_out)
        )
    return received


def read_tables(federation: Federation, schema: str) -> tuple[Received[SiteTable], Sequence[str]]:
    """Return the tables that clients have sent by a schema, and the clients that have sent none."""
    received = Received[SiteTable]()
    decode = partial(_decode_table, digest_of(schema), parse_schema(schema))
    for member in federation.enrolled():
        path = federation.path / FOLDER / member.name / TABLE
        if path.exists():
            _read(received, path, member.name, decode)
    of_another = [name for name, table in received.usable.items() if not table.letters]
    for name in of_another:
        del received.usable[name]
    waits = [each.name for each in federation.enrolled() if each.name not in received.usable]
    return received, waits


def _read(
    received: Received[T],
    path: Path,
    sender: str,
    decode: Callable[[str, str], tuple[str, T]],
) -> None:
    """Add what lies in a file, or the sentence that it cannot be used.

    `decode` takes the file's text and the client that sent it, "" if that is unknown, and returns
    the client that it is of.
    """
    try:
        client, content = decode(read_small(path), sender)
    except (OSError, ValueError) as error:
        received.left_out.append(
            f"{path} cannot be used and is left out: {str(error)[:LONGEST_FAULT]}. Ask"
            f" {sender or 'its client'}'s owner for another"
        )
    else:
        received.usable[client] = content


def _decode_letter(text: str, sender: str) -> tuple[str, Letter]:
    letter = decode_letter(text.encode())
    _check_sender(letter, sender)
    if letter.unit != ROW and fold(letter.unit) not in map(fold, letter.columns):
        raise ValueError(f"it has no column {letter.unit!r}, its unit")
    return letter.client, letter


def _decode_table(digest: str, schema: Schema, text: str, sender: str) -> tuple[str, SiteTable]:
    """Return a client's table, without letters if it is by another schema than that of a digest.

    Raise ValueError if it has what the schema has not.
    """
    table = SiteTable.decode(text.encode())
    if table.schema != digest:
        return sender, replace(table, letters={})
    for name, letter in table.letters.items():
        _check_sender(letter, sender)
        if name not in (ALL, *schema.predicted.categories):
            raise ValueError(f"the schema's target has no class {name[:MAX_TEXT]!r}")
        for column, about in letter.columns.items():
            _check_column(schema, column, about.values)
    return sender, table


def _check_column(schema: Schema, name: str, values: Collection[str]) -> None:
    """Raise ValueError unless a schema has a column, and it may have these values."""
    if name not in schema.fields:
        raise ValueError(f"the schema has no column {name!r}")
    categories = schema.fields[name].categories
    for value in values:
        is_known = value in categories if categories else parse_number(value) is not None
        if not is_known:
            raise ValueError(f"column {name!r} has no value {value!r} by the schema")


def _check_sender(letter: Letter, sender: str) -> None:
    """Raise ValueError if a letter is of another client than the one that sent it."""
    if sender and letter.client != sender:
        raise ValueError(f"it is of client {letter.client!r}, and client {sender!r} sent it")


def write_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as a table in Markdown."""
    heads = [*dict.fromkeys(head for row in rows for head in row)]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        lines.append([row.get(head, "") for head in heads])
    written = ""
    for cells in lines:
        escaped = [escape_unprintable(cell).replace("|", "&#124;") for cell in cells]
        written += f"| {' | '.join(escaped)} |\n"
    return written


def describe_findings(
    findings: Sequence[Finding], schema: Mapping[str, Field] = {}, more: str = ""
) -> Iterator[str]:
    """Yield the findings that stand out most, with lines to paste, then what each site lacks.

    `schema` has the fields that are known, and `more` says where further findings are.
    """
    known = [each for each in findings if not isinstance(each, Quiet)]
    yield from describe(known[:MOST], EVERY_FILE, schema)
    if len(known) > MOST:
        yield f"and {len(known) - MOST} more{more}"
    lacking: dict[tuple[str, type[Quiet]], list[str]] = {}
    for each in findings:
        if isinstance(each, Quiet):
            for site in each.sites:
                lacking.setdefault((site, type(each)), []).append(each.field)
    for (site, kind), fields in lacking.items():
        yield f"{site} {kind.has} {join_first(fields)}"


def read_drafted(folder: Path) -> Mapping[str, Field]:
    """Return the fields of the schema that an earlier draft has left in a folder, {} of none."""
    file = folder / SCHEMA_NAME
    return parse_schema(file.read_text(), str(file)).fields if file.exists() else {}


def write_schema(
    letters: Mapping[str, Letter],
    findings: Sequence[Finding],
    folder: Path,
    wanted: Mapping[str, Any],
) -> Iterator[str]:
    """Write the schema of all, and each client's block for its owner.toml; yield lines on it.

    `wanted` are arguments of `draft`. A schema that is there is only extended, and a block that is
    there stays.
    """
    units = Counter(letter.unit for letter in letters.values())
    unit = "" if ROW in units else units.most_common(1)[0][0]
    filled = [letter for letter in letters.values() if letter.rows]
    tables = stand_ins([*_in_usual_words(filled, findings)], unit)
    wishes = Wanted(positive_words=POSITIVE_WORDS, unit=unit, **wanted)
    drafted, left_out = _draft({each.path: each for each in tables}, wishes)
    yield from left_out
    # how the tables that stand for letters are written is not how the clients' files are
    drafted = replace(drafted, schema=drafted.schema.model_copy(update={"files": {}}))
    (folder / "clients").mkdir(parents=True, exist_ok=True)
    file = folder / SCHEMA_NAME
    if file.exists():
        before = file.read_text()
        text = _extend(before, drafted)
        schema = parse_schema(text, str(file))
        unknown = [name for name in drafted.left_out if not _knows(schema, name)]
        if text != before:
            write_whole(file, text.encode())
            yield f"{file} is extended: read it and correct it"
        if unknown:
            yield f"{file} does not name {join_first(unknown)}: extend ignore by {quote(unknown)}"
    else:
        schema = drafted.schema
        check_schema(schema, drafted.text, str(file))
        asked = [*_ask_about_alike(letters, findings)]
        write_whole(file, "\n".join([drafted.text, *asked]).encode())
        yield f"{file} is written: read it and correct it"
        if drafted.left_out:
            reasons = [f"{name} ({why.said})" for name, why in drafted.left_out.items()]
            yield f"{len(reasons)} columns are left out: {join_first(reasons, MOST)}"
    for client, letter in letters.items():
        block = folder / "clients" / f"{client}.toml"
        if not block.exists():
            own = [each for each in findings if client in each.odd and not isinstance(each, Quiet)]
            lines = _block_of(letter, schema, own)
            write_whole(block, "\n".join(lines).encode())
            yield f"{block} is written: lines for the owner.toml of {client}"


def _in_usual_words(letters: Iterable[Letter], findings: Sequence[Finding]) -> Iterator[Letter]:
    """Yield letters with the answers that most sites give in other words in these words.

    The schema has them once; each such client's block has its own.
    """
    usual_sites: dict[str, tuple[str, ...]] = {}
    usual_words: dict[tuple[str, str], Mapping[str, str]] = {}
    for each in findings:
        # of two sides, the second finding is about the first one's other side
        if isinstance(each, Wording) and usual_sites.get(each.field) != each.sites:
            usual_sites[each.field] = each.if_as
            usual_words |= {(site, squash(each.field)): dict(each.words) for site in each.sites}
    for letter in letters:
        columns = dict(letter.columns)
        for name, column in letter.columns.items():
            usual = usual_words.get((letter.client, squash(name)), {})
            values = {usual.get(text, text): count for text, count in column.values.items()}
            columns[name] = replace(column, values=values)
        yield replace(letter, columns=columns)


def _ask_about_alike(letters: Mapping[str, Letter], findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a field in comments for columns of several names that the draft leaves out."""
    for each in findings:
        if not isinstance(each, Alike):
            continue
        named = zip(each.sites, each.columns, strict=True)
        columns = [letters[site].columns[name] for site, name in named]
        texts = [*dict.fromkeys(chain(*(column.values for column in columns)))]
        are_numbers = any(column.quantiles for column in columns) or all(
            parse_number(text) is not None for text in texts
        )
        field = NUMBER if are_numbers else Field(type="string", categories=tuple(texts))
        yield escape_unprintable(f"# {each.say()}")
        yield (
            f"# If so, take {quote(each.field)} out of ignore, uncomment these lines, and the names"
            " in each client's block."
        )
        for line in write_fields({each.field: field}, {}):
            yield f"# {line}" if line else "#"
        yield ""


def _draft(tables: Mapping[Path, ReadTable], wanted: Wanted) -> tuple[Draft, Sequence[str]]:
    """Return the draft of tables, and a sentence on each that is left out as it prevents one.

    Many values of the target are no classes, for all. So the table with most of them is left out,
    and so on: one, or a fifth of all. Raise DataError if that does not help.
    """
    kept = dict(tables)
    left_out = list[str]()
    first: DataError | None = None
    while True:
        try:
            return draft(kept, {path: path.stem for path in kept}, wanted), left_out
        except DataError as error:
            first = first or error
            if len(kept) < 3 or len(left_out) >= max(1, len(tables) // 5):
                raise first from None
            odd = max(kept, key=lambda path: _count_values(tables[path], wanted.target))
            del kept[odd]
            left_out.append(f"{odd.stem} is left out of the schema: with it, {error}")


def _count_values(table: ReadTable, name: str) -> int:
    """Return how many different values a table has in a column, 0 without such a column."""
    values = table.find(name)
    return 0 if values is None else len(values.unique())


def _extend(text: str, drafted: Draft) -> str:
    """Return a schema with the fields of a draft that it does not have, at its end."""
    schema = parse_schema(text)
    drafted_fields = drafted.schema.fields
    keys = squash_apart([drafted_fields, _names_in(schema)])
    known = {keys[name] for name in _names_in(schema)}
    new = {name: field for name, field in drafted_fields.items() if keys[name] not in known}
    if not new:
        return text
    return "\n".join([text.rstrip("\n"), *write_fields(new, drafted.notes), ""])


def _knows(schema: Schema, name: str) -> bool:
    return squash(name) in map(squash, _names_in(schema))


def _names_in(schema: Schema) -> list[str]:
    return [*schema.fields, *schema.ignore, schema.unit, schema.client]


def _block_of(letter: Letter, schema: Schema, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines that say in a client's owner.toml how its files have the schema's columns."""
    yield FILES
    several = text_if(len(letter.formats) > 1, "# of some files only: ")
    for way in letter.formats:
        stated = {key: way[key] for key in USUAL if way[key] != USUAL[key]}
        for line in write_keys(SchemaFile.model_validate(stated), {}):
            yield f"{several}{line}"
    columns = {*map(fold, letter.columns)}
    fields = {*map(fold, schema.fields)}
    keys = squash_apart([letter.columns, schema.fields])
    lacked = {keys[name]: name for name in schema.fields if fold(name) not in columns}
    # A column of a field's own name is that field's, and each field has one column.
    for name in (each for each in letter.columns if fold(each) not in fields):
        is_unit = fold(name) == fold(letter.unit)
        field = schema.unit if is_unit else lacked.pop(keys[name], "")
        if field and fold(field) != fold(name):
            yield from write_own(field, FileField(name=(name,)))
    named = {each.field for each in findings if isinstance(each, Named)}
    known = {keys[name] for name in letter.columns}
    for name, about in schema.fields.items():
        if keys[name] not in known and name not in named:
            yield f'# fields.{write_key(name)}.name = ""'
            if about.categories:
                yield f"# fields.{write_key(name)}.spellings = {spell(about.categories)}"
    for finding in findings:
        change = finding.propose(schema.fields.get(finding.field, NUMBER), EVERY_FILE)
        if isinstance(finding, Alike):
            change = Change(finding.field, EVERY_FILE, [finding.change_at(letter.client)])
        if change and change.file:
            only = text_if(finding.condition != IF_SO, f"; {finding.condition}:")
            yield f"# {escape_unprintable(f'{finding.field}: {finding.say()}{only}')}"
            for line in chain(*change.lines):
                yield f"# {line}"
    yield ""

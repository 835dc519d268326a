"""Infer a schema from files, as a draft that a person reads and corrects."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbloom.errors import did_you_mean
from fairbloom.text import join_first, plural, text_if

from .cells import MISSING, FileColumn
from .code_signs import CODED
from .column_laws import Drafted, draft_column
from .comparison import (
    Named,
    Profiles,
    are_alike,
    compare,
    leave_asked,
    match_names,
    match_rare,
)
from .determining import determines
from .encoding import is_missing, rows_of_clients
from .findings import SHOWN, Quiet, say_and_propose
from .identifiers import (
    NAMED,
    NUMBERS_OF_PERSONS,
    NUMBERS_OF_ROWS,
    Reason,
    find_units,
    name_persons,
    rows_of_units,
)
from .marks import SAMPLE, infer_marks
from .names_by_number import Outcomes, act_as_names, draw_rows
from .positive import ask_about_positive, choose_positive
from .profiles import Cells, ColumnProfile, profile
from .reading import ReadTable, Values, read
from .reasons import DataError
from .schema import (
    EVERY_FILE,
    FileField,
    Missing,
    Schema,
    SchemaFile,
    fold,
    key_of_client,
    normalise,
    squash,
    validate,
)
from .scripts import as_latin, show_script
from .sides import settle
from .survey import Column, Sites
from .toml import (
    Note,
    Notes,
    Place,
    Question,
    questions_in,
    quote,
    write_key,
    write_schema,
)

# How a file may be written that is not read as it is, by the reason: a note may be above the names
# of the columns.
VARIANTS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "row-length": [{"headerRows": (2,)}],
    "one-column": [{"headerRows": (2,)}],
    "unnamed-column": [{"headerRows": (2,)}],
}

# Usual names of the target, in any case of letters, used if no setting names it.
TARGETS = ("target", "label", "y")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a draft is to say; "" as a column: it is to be found, or missing.

    Attributes
    ----------
    positive_words
        Names that the positive one of two classes may have, in lower case.
    target
        The column to predict, by default the one called target, label or y.
    client
        The column that names each row's client, for a single file.
    unit
        The column of each row's person, or other unit.
    missing
        The treatment of rows with a missing value.
    kind
        "classification", "regression", or "auto", which decides by the target's values.
    without
        The clients of a single file whose rows are left out.
    advise
        Whether comments say how sites stand out.
    """

    positive_words: Collection[str]
    target: str = ""
    client: str = ""
    unit: str = ""
    missing: Missing = "error"
    kind: str = "auto"
    without: Collection[str] = ()
    advise: bool = False


@dataclass(frozen=True)
class Draft:
    """A schema that files suggest, notes on it, and why columns are left out, by name."""

    schema: Schema
    notes: Notes
    left_out: Mapping[str, Reason]

    @property
    def text(self) -> str:
        """The schema with its notes, as TOML."""
        return write_schema(self.schema, self.notes)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What it asks on how the files are read."""
        return tuple(questions_in(self.notes))


@dataclass(frozen=True, eq=False)
class Unfinished:
    """A draft, as far as the laws of all columns have come.

    Attributes
    ----------
    wanted
        What it is to say, with the columns as they are called in the files.
    tables, clients
        The tables, and the client of each, by file.
    columns
        The columns that may be fields.
    persons
        The column of each row's unit, None if none is known.
    fields
        Those that are.
    ignored
        Why the others are not, by name.
    units
        Columns that seem to name persons with several rows.
    determining
        Fields from which the target follows.
    """

    wanted: Wanted
    tables: Mapping[Path, ReadTable]
    clients: Mapping[Path, str]
    columns: Mapping[str, Column]
    persons: Column | None = None
    fields: Mapping[str, Drafted] = field(default_factory=dict)
    ignored: Mapping[str, Reason] = field(default_factory=dict)
    units: tuple[str, ...] = ()
    determining: tuple[str, ...] = ()

    def say(self, remarks: Iterable[tuple[str, str]]) -> "Unfinished":
        """Return it with further comments, pairs of a field and a text."""
        fields = dict(self.fields)
        for name, text in remarks:
            fields[name] = fields[name].say(text)
        return replace(self, fields=fields)

    def ask(self, questions: Iterable[tuple[str, str]]) -> "Unfinished":
        """Return it with further questions, pairs of a field and a text."""
        fields = dict(self.fields)
        for name, text in questions:
            fields[name] = fields[name].ask(text)
        return replace(self, fields=fields)

    @property
    def inputs(self) -> dict[str, Drafted]:
        """The fields but the target."""
        return {name: each for name, each in self.fields.items() if name != self.wanted.target}


def infer(paths: Mapping[str, Sequence[Path]], wanted: Wanted) -> Draft:
    """Return the schema that files suggest; `paths` has the files by client.

    Raise DataError if no file can be read, or the target or all inputs are missing.
    """
    clients = {path: name for name, files in paths.items() for path in files}
    targets = {fold(wanted.target)} if wanted.target else {*TARGETS}
    tables, unread = _read_all(clients, targets)
    notes = [f"{path.name} is left out of this draft: {why}" for path, why in unread]
    return draft(tables, clients, wanted, notes)


def draft(
    unmarked: Mapping[Path, ReadTable],
    clients: Mapping[Path, str],
    wanted: Wanted,
    notes: Sequence[str] = (),
) -> Draft:
    """Return the schema that tables suggest.

    Raise DataError if the target or all inputs are missing.

    Parameters
    ----------
    unmarked
        The tables by file, as they are read without a schema.
    clients
        The client of each file.
    wanted
        What the draft is to say.
    notes
        What it says first.
    """
    wanted = _find_columns(unmarked, wanted)
    if wanted.client and wanted.without:
        kept = _leave_out_clients(next(iter(unmarked.values())), wanted)
        unmarked = dict.fromkeys(unmarked, kept)
    tables, raw, unclear = survey_files(unmarked)
    renamed = _find_renamed(tables, raw)
    names, tables = _match_names(tables, renamed, wanted.target)
    for other in (wanted.client, wanted.unit):
        names.pop(fold(other), None)
    sites = _find_sites(tables, clients, next(iter(unmarked.values())), wanted.client)
    columns = _survey(sites, tables, raw, [*names.values()])
    unit = [wanted.unit] if wanted.unit else []
    persons = _survey(sites, tables, raw, unit).get(wanted.unit)
    unfinished = Unfinished(wanted, tables, clients, columns, persons)
    for law in LAWS:
        unfinished = law(unfinished)
    remarks = _remark_on_files(unmarked)
    files, asked = _describe_files(unfinished.tables, unmarked, clients)
    said = map(Note, [*notes, *remarks])
    renamings = _ask_about_renamed(renamed, clients)
    return _finish(unfinished, files, asked, [*said, *unclear, *renamings])


def _remark_on_files(tables: Mapping[Path, ReadTable]) -> Iterator[str]:
    """Yield remarks on how files are written."""
    for path, table in tables.items():
        for column, remark in table.remarks:
            if column is None:
                yield f"{path.name}: {remark}"


def _find_columns(tables: Mapping[Path, ReadTable], wanted: Wanted) -> Wanted:
    """Return the wishes with columns as files call them; raise DataError for unknown ones."""
    target = _find(tables, wanted.target, "csv.target", TARGETS)
    client = _find(tables, wanted.client, "csv.client") if wanted.client else ""
    unit = _find(tables, wanted.unit, "csv.unit") if wanted.unit else ""
    for key, name in (("client", client), ("unit", unit)):
        if fold(name) == fold(target):
            raise DataError(f"csv.{key} = {name!r}: it is the target: name another column, or none")
    return replace(wanted, target=target, client=client, unit=unit)


def _leave_out_clients(table: ReadTable, wanted: Wanted) -> ReadTable:
    """Return a table of several clients with the rows of those that are wanted."""
    found, _ = rows_of_clients(table.find(wanted.client), table.decimal, MISSING)
    kept = [rows for name, rows in found.items() if name not in wanted.without]
    return table.take(np.sort(np.concatenate(kept)))


def _find_sites(
    tables: Mapping[Path, ReadTable], clients: Mapping[Path, str], first: ReadTable, client: str
) -> Sites:
    """Return the sites of files, or those that a column of the first file names."""
    if not client:
        return Sites.of_files([*tables.values()], [clients[path] for path in tables])
    marked = next(iter(tables.values()))
    found, _ = rows_of_clients(first.find(client), marked.decimal, MISSING)
    rows = {name: places for name, places in found.items() if name}
    if not rows:
        raise DataError(f"{first.path}: column {client!r} names no client in any row")
    return Sites.of_one_file(first, rows)


def _survey(
    sites: Sites,
    tables: Mapping[Path, ReadTable],
    raw: Sequence[Mapping[str, FileColumn]],
    names: Sequence[str],
) -> dict[str, Column]:
    """Return the columns of these names at all sites; `raw` has each table's."""
    columns: dict[str, Column] = {}
    for name in names:
        own_names = [fold(table.column_name(name)) for table in tables.values()]
        parts = [part.get(own) for part, own in zip(raw, own_names, strict=True)]
        columns[name] = Column.of(sites, parts)
    return columns


def _finish(
    unfinished: Unfinished,
    files: Mapping[str, SchemaFile],
    asked: Notes,
    remarks: Sequence[Note],
) -> Draft:
    """Return the draft; `files` has the formats, and `asked` questions on them."""
    wanted = unfinished.wanted
    stated: dict[str, Any] = {"target": wanted.target, "missing": wanted.missing}
    keys = [*dict.fromkeys(table.file.key for table in unfinished.tables.values())]
    shown = f"Inferred from {join_first(keys, 10)}. Read it and correct it."
    notes: dict[Place, list[Note]] = {(): [Note(shown), *remarks]}
    target = unfinished.fields[wanted.target]
    if len(target.field.categories) == 2:
        positive, reason = _choose_positive(target, wanted.positive_words)
        stated["positive"] = positive
        notes["positive",] = [Note(ask_about_positive(reason), behind=True)]
    for key, value in (
        ("client", wanted.client),
        ("unit", wanted.unit),
        ("determining", unfinished.determining),
        ("ignore", tuple(unfinished.ignored)),
        ("files", files),
    ):
        if value:
            stated[key] = value
    for name, why in unfinished.ignored.items():
        notes["ignore", name] = [Note(str(why), behind=True)]
    notes["missing",] = []
    for name in unfinished.units:
        line = f"unit = {quote(name)}  # uncomment it to keep rows of each together in the split"
        notes["missing",].append(Note(line, is_line=True))
    notes["missing",] += _count_missing(unfinished)
    for name, each in unfinished.fields.items():
        for at, note in each.notes:
            notes.setdefault(("fields", name, *at), []).append(note)
    fields = {name: each.field for name, each in unfinished.fields.items()}
    unused = {name: NUMBERS_OF_ROWS for name, about in fields.items() if not about.input}
    schema = validate(Schema, {**stated, "fields": fields})
    return Draft(schema, {**notes, **asked}, {**unfinished.ignored, **unused})


def _choose_positive(target: Drafted, words: Collection[str]) -> tuple[str, str]:
    """Return the class that is probably the positive one of two, and why."""
    counts = np.bincount(target.values[target.values >= 0], minlength=2)
    return choose_positive(target.field.categories, counts.tolist(), words)


def _count_missing(unfinished: Unfinished) -> Iterator[Note]:
    """Yield a note on how many cells have no value, and what can be done about them."""
    count = 0
    for each in unfinished.fields.values():
        is_there = each.column.is_there[each.column.sites.of_row]
        count += int((is_missing(each.values) & is_there).sum())
    if count:
        cells = plural(count, "1 cell has", f"{count} cells have")
        remedy = ': "drop" leaves such rows out, "fill" takes the mean or no category'
        is_error = unfinished.wanted.missing == "error"
        yield Note(f"{cells} no value{text_if(is_error, remedy)}", behind=True)


# Files --------------------------------------------------------------------------------------------


def survey_files(
    tables: Mapping[Path, ReadTable],
) -> tuple[dict[Path, ReadTable], list[dict[str, FileColumn]], list[Note]]:
    """Return tables with the marks of their numbers, their columns by folded name, and notes.

    A note asks for a file's marks if its numbers can be read in two ways.
    """
    marked: dict[Path, ReadTable] = {}
    parts: list[dict[str, FileColumn]] = []
    notes: list[Note] = []
    for path, table in tables.items():
        columns = _survey_file(table, SchemaFile())
        marks = infer_marks(_find_texts(table, columns))
        file = table.file.model_copy(
            update={"decimalChar": marks.decimal, "groupChar": marks.group}
        )
        marked[path] = replace(table, file=file)
        if marks.unclear:
            question = (
                f"{table.path.name}: {marks.unclear!r} can be read in two ways: state decimalChar"
                f" or groupChar under [files.{quote(table.file.key)}]"
            )
            notes.append(Note(question, asks=True))
        if (marks.decimal, marks.group) != (".", ""):
            columns = _survey_file(table, file)
        parts.append(columns)
    return marked, parts, notes


def _read_all(
    clients: Mapping[Path, str], targets: Set[str]
) -> tuple[dict[Path, ReadTable], list[tuple[Path, DataError]]]:
    """Return the tables, and the files that cannot be read, with the errors.

    Raise DataError if none can be read.
    """
    tables: dict[Path, ReadTable] = {}
    unread: list[tuple[Path, DataError]] = []
    for path, name in clients.items():
        file = SchemaFile()
        file._key = key_of_client(name, path.name)
        try:
            found = [*_read_variants(path, file, targets)]
            tables[path] = found[0] if len(found) == 1 else read(path, file)
        except DataError as error:
            unread.append((path, error))
    if not tables:
        raise unread[0][1]
    return tables, unread


def _read_variants(path: Path, file: SchemaFile, targets: Set[str]) -> Iterator[ReadTable]:
    """Yield a file's table, or if it cannot be read as it is, those that it may hold.

    One of several sheets, or one below a note, must have a target.
    """
    try:
        table = read(path, file)
    except DataError as error:
        for change in VARIANTS.get(error.why, [{"sheet": name} for name in error.sheets]):
            if change.keys().isdisjoint(file.model_fields_set):
                yield from _read_variants(path, file.model_copy(update=change), targets)
        return
    if not file.model_fields_set or not targets.isdisjoint(table.by_name):
        yield table


def _find(
    tables: Mapping[Path, ReadTable], name: str, setting: str, usual: Collection[str] = ()
) -> str:
    """Return the name of the column that `name` means, or if it is "", of the only `usual` one.

    Raise DataError if no column of any file fits, or several of the first with one do.
    """
    meant = {fold(name)} if name else {*usual}
    having = [table for table in tables.values() if not meant.isdisjoint(table.by_name)]
    table = next(iter(having or tables.values()))
    usable = [each for each, values in table.columns.items() if values is not None]
    found = [each for each in usable if fold(each) in meant]
    if len(found) == 1:
        return normalise(found[0])
    problem = (
        f"has the columns {join_first(found)}"
        if found
        else f"has no column {name or join_first([*usual])}"
    )
    known = join_first([*table.columns], most=100)  # any of them may be the one that is needed
    if not name and (likeliest := _likeliest_target(table, found or usable)):
        option = shlex.quote(f"{setting}={likeliest}")
        raise DataError(
            f"{table.path} {problem}: add --set {option}, the likeliest of {known}; the first line"
            " must name the columns"
        )
    raise DataError(
        f"{table.path} {problem}: {did_you_mean(name, table.columns)}name one of {known} by"
        f" {setting}"
    )


def _likeliest_target(table: ReadTable, names: Sequence[str]) -> str:
    """Return the last of these columns with two distinct values, or else the last; "" of none.

    A column with empty cells is rather a feature.
    """
    for name in reversed(names):
        cells = table.columns[name]
        if cells is None or cells.null_count:
            continue
        values = {str(cell).strip() for cell in cells}
        if len(values) == 2 and "" not in values:
            return name
    return next(reversed(names), "")


def _survey_file(table: ReadTable, file: SchemaFile) -> dict[str, FileColumn]:
    """Return the columns of a table by folded name; its texts are read as `file` says."""
    return {
        fold(name): FileColumn.of(values, file)
        for name, values in table.columns.items()
        if values is not None
    }


def _find_texts(table: ReadTable, columns: Mapping[str, FileColumn]) -> Iterator[Collection[str]]:
    """Yield the different cells of each column of texts that show the marks of numbers."""
    for name, column in columns.items():
        values: Values = table.columns[table.by_name[name]]
        if str(values.type) == "string":
            texts = values.slice(0, SAMPLE).to_pylist()
            texts += [column.texts[place] for place in np.flatnonzero(column.is_wrong).tolist()]
            yield dict.fromkeys(texts)


class Renamed(NamedTuple):
    """A column that a client's next file, `path`, has under a new name.

    It may be another one, unless both are alike.
    """

    old: str
    new: str
    path: Path
    are_alike: bool


def _find_renamed(
    tables: Mapping[Path, ReadTable], raw: Sequence[Mapping[str, FileColumn]]
) -> list[Renamed]:
    """Return the columns in which a client's next file differs, and only in its name."""
    renamed: list[Renamed] = []
    parts = dict(zip(tables, raw, strict=True))
    for (path, table), (next_path, after) in pairwise(tables.items()):
        differing = [
            (old, new) for old, new in zip(table.by_name, after.by_name, strict=False) if old != new
        ]
        if table.file.key != after.file.key or len(differing) != 1:
            continue
        ((old, new),) = differing
        before = _profile_part(table, parts[path].get(old))
        now = _profile_part(after, parts[next_path].get(new))
        shown = normalise(table.by_name[old]), normalise(after.by_name[new])
        renamed.append(Renamed(*shown, next_path, are_alike(now, [before])))
    return renamed


def _profile_part(table: ReadTable, part: FileColumn | None) -> ColumnProfile:
    """Return the profile of one column of one file."""
    column = Column.of(Sites.of_files([table], [""]), [part])
    return profile({"": Cells.of_column(column, slice(None))})[""]


def _ask_about_renamed(renamed: Sequence[Renamed], clients: Mapping[Path, str]) -> Iterator[Note]:
    """Yield a question on each column that may have a new name, or may be another one."""
    for each in renamed:
        if not each.are_alike:
            key = f"{clients[each.path]}/{each.path.name}"
            line = f"fields.{write_key(each.old)}.name = {quote(each.new)}"
            text = f"{key} has {each.new!r} in the place of {each.old!r}: are they one column?"
            yield Note(text, asks=True, lines=(f"[files.{quote(key)}]", line))


def _match_names(
    tables: Mapping[Path, ReadTable], renamed: Sequence[Renamed], target: str
) -> tuple[dict[str, str], dict[Path, ReadTable]]:
    """Return the columns' names by their folded forms, each in its first spelling, and the tables.

    A column that other files write differently, as in "Blood Pressure" and "blood_pressure", or
    that is `renamed` and alike, has the most frequent name. Its name in the other files becomes a
    part of their `file`.
    """
    names: dict[str, str] = {}
    holders: dict[str, list[Path]] = {}  # folded name → files
    for site, table in tables.items():
        for name in table.columns:
            names.setdefault(fold(name), normalise(name))
            holders.setdefault(fold(name), []).append(site)
    former: dict[str, str] = {}
    for each in renamed:
        if each.are_alike:
            former[fold(each.new)] = fold(each.old)
    alike: dict[str, list[str]] = {}
    for name in names:
        form = squash(names[former.get(name, name)])
        alike.setdefault(form, []).append(name)
    changed = dict(tables)
    matched: dict[str, str] = {}
    for group in alike.values():
        files = [site for name in group for site in holders[name]]
        if len({*files}) < len(files):  # they are columns of one file, and so differ
            matched |= {name: names[name] for name in group}
            continue
        usual = max(group, key=lambda name: (name == fold(target), len(holders[name])))
        matched[usual] = names[usual]
        for other in group:
            if other != usual:
                own = {names[usual]: FileField(name=(names[other],))}
                for site in holders[other]:
                    known = changed[site].file.fields
                    changed[site] = _with_fields(changed[site], {**known, **own})
    return matched, changed


def _with_fields(table: ReadTable, fields: Mapping[str, FileField]) -> ReadTable:
    return replace(table, file=table.file.model_copy(update={"fields": fields}))


def _describe_files(
    tables: Mapping[Path, ReadTable], found: Mapping[Path, ReadTable], clients: Mapping[Path, str]
) -> tuple[dict[str, SchemaFile], Notes]:
    """Return the formats that differ from how files are read without a schema, and questions.

    What is the same in all files of a client is said once.
    """
    stated = {path: _describe_file(table, found[path]) for path, table in tables.items()}
    written: dict[str, dict[Place, Stated]] = {}
    for path, table in tables.items():
        files = [stated[other] for other in tables if tables[other].file.key == table.file.key]
        of_all = dict(stated[path])
        for each in files:
            of_all = {key: value for key, value in of_all.items() if each.get(key) == value}
        written[table.file.key] = of_all
        rest = {key: value for key, value in stated[path].items() if key not in of_all}
        if rest:
            written[f"{clients[path]}/{path.name}"] = rest
    every = next(iter(written.values()))
    if all(each == every for each in written.values()):
        written = {EVERY_FILE: every}
    schema_files: dict[str, SchemaFile] = {}
    asked: dict[Place, list[Note]] = {}
    for key, values in written.items():
        keys: dict[str, Any] = {}
        for place, value in values.items():
            if len(place) == 1:
                keys[place[0]] = value.value
            else:
                keys.setdefault("fields", {})[place[1]] = value.value
            if value.asks:
                asked["files", key, *place] = [Note(value.asks, asks=True)]
        schema_files[key] = SchemaFile(**keys)
    return {key: file for key, file in schema_files.items() if file.model_fields_set}, asked


class Stated(NamedTuple):
    """A value of a file, or of a column in it, and the question that it asks, if any."""

    value: Any
    asks: str = ""


def _describe_file(table: ReadTable, found: ReadTable) -> dict[Place, Stated]:
    """Return how a file is written, unless it is read so without a schema."""
    usual = SchemaFile(decimalChar=".").model_dump(exclude={"delimiter", "fields"})
    stated: dict[Place, Stated] = {}
    for key in usual:
        value = getattr(table.file, key)
        if value != usual[key] or (key == "decimalChar" and found.decimal != "."):
            stated[key,] = Stated(value)
    for name, own in table.file.fields.items():
        (called,) = own.name
        question = ""
        if as_latin(called) != called:
            shown = show_script(called)
            question = f"{shown} looks like {name!r}, and is read as it: are they one?"
        elif table.file.key.endswith("/*") or called.endswith((")", "]")):
            question = f"if its unit is another one, add unit, factor and offset to {name}"
        stated["fields", name] = Stated(own, question)
    return stated


# Laws of all columns ------------------------------------------------------------------------------


def draft_columns(unfinished: Unfinished) -> Unfinished:
    """Draft each column by itself."""
    wanted = unfinished.wanted
    fields: dict[str, Drafted] = {}
    ignored: dict[str, Reason] = {}
    for name, column in unfinished.columns.items():
        found = draft_column(name, column, wanted.kind if name == wanted.target else "")
        if isinstance(found, Reason):
            ignored[name] = found
        else:
            fields[name] = found
    return replace(unfinished, fields=fields, ignored=ignored)


def ignore_units(unfinished: Unfinished) -> Unfinished:
    """Ignore columns that name a person of several rows; remark those that may."""
    if unfinished.wanted.unit:
        return unfinished
    inputs = unfinished.inputs
    values = {name: each.values for name, each in inputs.items()}
    units: list[str] = []
    ignored = dict(unfinished.ignored)
    remarks: list[tuple[str, str]] = []
    for name, column in unfinished.columns.items():
        if name == unfinished.wanted.target:
            continue
        rows = rows_of_units(name, column)
        if not rows:
            continue
        is_text = name not in inputs or bool(inputs[name].field.categories)
        others = [values[other] for other in values if other != name]
        is_named = NAMED.fullmatch(name) and not CODED.fullmatch(name)
        if is_named or (is_text and name_persons(column, others)):
            units.append(name)
            said = f"{NUMBERS_OF_PERSONS.said}, with {rows:.1f} rows each"
            ignored.setdefault(name, Reason(said))
        elif name in inputs and is_text:
            question = (
                f"{rows:.1f} rows have the same text: if it names a person, say unit ="
                f" {quote(name)} at the top, which keeps such rows together"
            )
            remarks.append((name, question))
    fields = {name: each for name, each in unfinished.fields.items() if name not in units}
    persons = unfinished.columns[units[0]] if units else None
    changed = replace(
        unfinished, fields=fields, ignored=ignored, units=tuple(units), persons=persons
    )
    return changed.ask(remarks)


def ignore_other_names(unfinished: Unfinished) -> Unfinished:
    """Ignore ignored columns in files that write their names differently, too."""
    used = {*unfinished.fields, unfinished.wanted.unit}
    ignored = dict(unfinished.ignored)
    tables: dict[Path, ReadTable] = {}
    for path, table in unfinished.tables.items():
        own = table.file.fields
        for name in own:
            if name not in used:
                ignored[own[name].name[0]] = ignored[name]
        tables[path] = _with_fields(table, {name: own[name] for name in own if name in used})
    return replace(unfinished, tables=tables, ignored=ignored)


def use_what_is_there(unfinished: Unfinished) -> Unfinished:
    """Numbers of rows are better than nothing to learn from; raise DataError without a column."""
    inputs = unfinished.inputs
    if not inputs:
        first = next(iter(unfinished.tables.values()))
        raise DataError(
            f"{first.path} has no column but the target {unfinished.wanted.target!r} that can be"
            " learned from"
        )
    if any(each.field.input for each in inputs.values()):
        return unfinished
    used = {
        name: replace(each, field=each.field.model_copy(update={"input": True}))
        for name, each in inputs.items()
    }
    return replace(unfinished, fields={**unfinished.fields, **used})


def say_who_stands_out(unfinished: Unfinished) -> Unfinished:
    """Say what stands out, by the profiles of the sites, and the line that a person may add."""
    if not unfinished.wanted.advise:
        return unfinished
    fields, own = _profile_sites(unfinished)
    keys: dict[str, str] = {}
    if not unfinished.wanted.client:
        keys = {
            unfinished.clients[path]: table.file.key for path, table in unfinished.tables.items()
        }
    remarks: list[tuple[str, str]] = []
    named = [*match_names(fields, own)]
    for finding in [*named, *settle(leave_asked(compare(fields), fields), fields)]:
        if not isinstance(finding, Quiet):
            about = unfinished.fields[finding.field].field
            advice = say_and_propose(finding, about, keys)
            remarks.append((finding.field, f"{join_first(finding.sites, SHOWN)}: {advice}"))
    asked = _ask_about_ignored(unfinished.ignored, own, named)
    return replace(unfinished, ignored={**unfinished.ignored, **asked}).say(remarks)


def _ask_about_ignored(
    ignored: Mapping[str, Reason],
    own: Mapping[str, Mapping[str, ColumnProfile]],
    named: Sequence[Named],
) -> dict[str, Reason]:
    """Return the reasons of columns that one site has, and that look like another site's.

    `own` has each site's, and `named` those that may be a field.
    """
    rare: dict[str, Profiles] = {}
    for site, columns in own.items():
        rare |= {name: {site: column} for name, column in columns.items()}
    asked: dict[str, Reason] = {}
    for each in match_rare(rare, named):
        remedy = f"if so, add [fields.{write_key(each.field)}], and each other's name under files"
        for name in each.columns:
            asked[name] = Reason(f"{ignored[name].said}; {each.say()} {remedy}", of_it=False)
    return asked


def _profile_sites(
    unfinished: Unfinished,
) -> tuple[dict[str, dict[str, ColumnProfile]], dict[str, dict[str, ColumnProfile]]]:
    """Return the profiles of each field by site, and of each site's own columns by name."""
    sites = next(iter(unfinished.columns.values())).sites
    fields: dict[str, dict[str, ColumnProfile]] = {name: {} for name in unfinished.fields}
    own: dict[str, dict[str, ColumnProfile]] = {}
    for place in np.flatnonzero(sites.ends > sites.starts).tolist():
        rows = slice(int(sites.starts[place]), int(sites.ends[place]))
        for name, profiled in profile(_cells_of(unfinished, place, rows)).items():
            if name in fields:
                fields[name][sites.names[place]] = profiled
            else:
                own.setdefault(sites.names[place], {})[name] = profiled
    return fields, own


def _cells_of(unfinished: Unfinished, site: int, rows: slice) -> dict[str, Cells]:
    """Return a site's cells in the fields, and in the columns that no other site has."""
    cells = {
        name: Cells.of(each.field, each.values[rows])
        for name, each in unfinished.fields.items()
        if each.column.is_there[site]
    }
    for name, column in unfinished.columns.items():
        is_own = column.is_there[site] and column.is_there.sum() == 1
        if is_own and name in unfinished.ignored:
            cells[name] = Cells.of_column(column, rows)
    return cells


def ask_about_determining(unfinished: Unfinished) -> Unfinished:
    """Ask of inputs from which the target follows whether they are known only after it."""
    target = unfinished.wanted.target
    outcome = unfinished.fields[target].values
    determining = [
        name for name, each in unfinished.inputs.items() if determines(each.values, outcome)
    ]
    question = f"determines {target}: is it known only after the outcome?"
    changed = replace(unfinished, determining=tuple(determining))
    return changed.ask((name, f"{name} {question}") for name in determining)


def ask_about_names(unfinished: Unfinished) -> Unfinished:
    """Ask whether inputs are codes if their numbers act as names."""
    target = unfinished.fields[unfinished.wanted.target].values
    sites = next(iter(unfinished.columns.values())).sites
    is_known = np.isfinite(target) if target.dtype.kind == "f" else target >= 0
    if unfinished.persons is not None:  # one row of each: the rows of a person have one outcome
        units = find_units(unfinished.persons)
        is_first = units < 0
        is_first[np.unique(units, return_index=True)[1]] = True
        is_known &= is_first
    rows = draw_rows(is_known)
    outcomes = Outcomes.of(target[rows], sites.of_row[rows])
    fields = dict(unfinished.fields)
    for name, each in unfinished.inputs.items():
        if not each.field.input or each.field.categories or name in unfinished.determining:
            continue
        if act_as_names(each.values[rows], outcomes):
            fields[name] = each.ask_about_names()
    return replace(unfinished, fields=fields)


# What is said of all columns, in this order.
LAWS = (
    draft_columns,
    ignore_units,
    ignore_other_names,
    use_what_is_there,
    say_who_stands_out,
    ask_about_determining,
    ask_about_names,
)

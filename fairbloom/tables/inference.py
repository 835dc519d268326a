"""Infer a schema from files, as a draft that a person reads and corrects."""

import re
import shlex
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairbloom.errors import did_you_mean
from fairbloom.text import join_first, plural, text_if

from .advice import SHOWN, say_and_propose
from .cells import (
    CODE,
    FLAG,
    MISSING,
    WITH_UNIT,
    FileColumn,
    find_sign,
    parse_number,
    shorten,
    sort_classes,
)
from .comparison import QUIET, compare, match_names
from .determining import determines
from .encoding import (
    ColumnValues,
    explain_cell,
    is_missing,
    is_unknown,
    measure_moments,
    rows_of_clients,
)
from .grammar import FEW_VALUES, NEARLY_ALL, are_numbers
from .identifiers import (
    NAMED,
    NEVER,
    NUMBERS_OF_PERSONS,
    NUMBERS_OF_ROWS,
    Finding,
    judge_numbers,
    judge_texts,
    name_persons,
    nearly_all_differ,
    rows_of_units,
)
from .marks import SAMPLE, infer_marks
from .positive import ask_about_positive, choose_positive
from .profiles import Cells, ColumnProfile, profile
from .reading import ReadTable, Values, read
from .reasons import MAX_FAULTS, DataError
from .schema import (
    EVERY_FILE,
    MAX_CATEGORIES,
    Field,
    FileField,
    Missing,
    SchemaFile,
    fold,
    fold_cell,
    key_of_client,
    normalise,
)
from .survey import Column, Sites
from .toml import quote, write_key

# A number with a leading 0, as codes have.
PADDED = re.compile(r"0[0-9]+")

# How a file may be written that is not read as it is, by the reason: a note may be above the names
# of the columns.
VARIANTS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "row-length": [{"headerRows": (2,)}],
    "one-column": [{"headerRows": (2,)}],
    "unnamed-column": [{"headerRows": (2,)}],
}

# Usual names of the target, in any case of letters, used if no setting names it.
TARGETS = ("target", "label", "y")

# A target with more distinct whole numbers is a quantity, unless csv.kind is set.
MAX_NUMBERED_CLASSES = 100

# Different values of a column of numbers and other texts that may be categories.
MAX_MIXED = 20

# Share of rows with a text, above which the texts among numbers are categories, and no faults.
MIXED_SHARE = 0.05

# Different whole numbers that may be codes: few of them, or many that leave most numbers between
# them out, and have this many rows each on average.
MAX_FEW = 20
CODE_DENSITY = 0.45  # even numbers have 0.5
CODE_ROWS = 10

# A number with a letter that may be a flag. Letters of one of these kinds are units: temperatures,
# times, weights.
FLAGGED = re.compile(rf"[+-]?[0-9]+(?:[.,][0-9]+ ?| )(?P<flag>{FLAG})")
UNIT_LETTERS = ("cfk", "smhdwyja", "gtk")
MAX_FLAGS = 8

# Texts that mean a missing value among numbers; among other texts they may be categories.
GAPS = ("n.a.", "n.a", "na.", "-", "--", "---", "none", "null", "unknown", "missing", "nil")

# Truth values of programs and spreadsheets, which other sites may write as numbers.
BOOLEANS = {"true", "false", "wahr", "falsch", "vrai", "faux", "vero", "falso", "verdadero"}

# The line of a field that is not an input.
NO_INPUT = "input = false"


@dataclass
class Drafted:
    """A field of the draft: its lines, the comments above them, and the column by it."""

    column: Column
    about: Field
    lines: list[str]
    comments: list[str]
    values: ColumnValues


@dataclass
class Draft:
    """An unfinished schema: fields, reasons to ignore columns, and columns of likely units."""

    columns: dict[str, Column] = field(default_factory=dict)
    fields: dict[str, Drafted] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)


def infer(
    paths: Mapping[str, Sequence[Path]], *, target: str = "", **wanted: Any
) -> tuple[str, dict[str, str]]:
    """Return the schema that files suggest, with comments, and why columns are left out, by name.

    `paths` has the files by client, and `wanted` the other arguments of `draft`. Raise DataError if
    no file can be read.
    """
    clients = {path: name for name, files in paths.items() for path in files}
    tables, unread = _read_all(clients, {fold(target)} if target else {*TARGETS})
    notes = [f"{path.name} is left out of this draft: {why}" for path, why in unread]
    lines, files, left_out = draft(tables, clients, notes, target=target, **wanted)
    return "\n".join([*lines, *files]) + "\n", left_out


def survey_files(
    tables: Mapping[Path, ReadTable],
) -> tuple[dict[Path, ReadTable], list[dict[str, FileColumn]], list[str]]:
    """Return tables with the marks of their numbers, their columns by folded name, and notes.

    A note asks for a file's marks if its numbers can be read in two ways.
    """
    marked: dict[Path, ReadTable] = {}
    parts: list[dict[str, FileColumn]] = []
    notes: list[str] = []
    for path, table in tables.items():
        columns = _survey_file(table, SchemaFile())
        marks = infer_marks(_find_texts(table, columns))
        file = table.file.model_copy(
            update={"decimalChar": marks.decimal, "groupChar": marks.group}
        )
        marked[path] = replace(table, file=file)
        if marks.unclear:
            notes.append(
                f"{table.path.name}: {marks.unclear!r} can be read in two ways: state decimalChar"
                f" or groupChar under [files.{quote(table.file.key)}]"
            )
        if (marks.decimal, marks.group) != (".", ""):
            columns = _survey_file(table, file)
        parts.append(columns)
    return marked, parts, notes


def draft(
    unmarked: Mapping[Path, ReadTable],
    clients: Mapping[Path, str],
    notes: Sequence[str] = (),
    *,
    positive_words: Collection[str],
    target: str = "",
    client: str = "",
    unit: str = "",
    missing: Missing = "error",
    kind: str = "auto",
    without: Collection[str] = (),
    advise: bool = False,
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the lines of a schema, of its files' formats, and why columns are left out, by name.

    A column is "" if it is to be found, or there is none. Raise DataError if there is no target, or
    nothing to learn from.

    Parameters
    ----------
    unmarked
        The tables by file, as they are read without a schema.
    clients
        The client of each file.
    notes
        What the draft says first.
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
    first = next(iter(unmarked.values()))
    target = _find(unmarked, target, "csv.target", TARGETS)
    client = _find(unmarked, client, "csv.client") if client else ""
    if client and without:
        found, _ = rows_of_clients(first.find(client), first.decimal, MISSING)
        kept = [rows for name, rows in found.items() if name not in without]
        first = first.take(np.sort(np.concatenate(kept)))
        unmarked = dict.fromkeys(unmarked, first)
    unit = _find(unmarked, unit, "csv.unit") if unit else ""
    for key, name in (("client", client), ("unit", unit)):
        if fold(name) == fold(target):
            raise DataError(f"csv.{key} = {name!r}: it is the target: name another column, or none")
    remarks = [
        f"{path.name}: {remark}"
        for path, table in unmarked.items()
        for name, remark in table.remarks
        if name is None
    ]
    tables, raw, unclear = survey_files(unmarked)
    names = _match_names(tables, target)
    sites = Sites.of_files([*tables.values()], [clients[path] for path in tables])
    if client:
        found, _ = rows_of_clients(first.find(client), next(iter(tables.values())).decimal, MISSING)
        rows = {name: reason for name, reason in found.items() if name}
        if not rows:
            raise DataError(f"{first.path}: column {client!r} names no client in any row")
        sites = Sites.of_one_file(first, rows)
    names.pop(fold(client), None)
    names.pop(fold(unit), None)
    drafted = Draft()
    for name in names.values():
        drafted.columns[name] = Column.of(
            sites,
            [
                columns.get(fold(table.column_name(name)))
                for table, columns in zip(tables.values(), raw, strict=True)
            ],
        )
        _draft_column(drafted, name, name == target, kind)
    if not unit:
        _propose_units(drafted, target)
    _ignore_other_names(drafted, tables, unit)
    if len(drafted.fields) == 1:
        raise DataError(
            f"{first.path} has no column but the target {target!r} that can be learned from"
        )
    if not any(each.about.input for name, each in drafted.fields.items() if name != target):
        for each in drafted.fields.values():  # better than nothing to learn from
            each.lines = [line for line in each.lines if line != NO_INPUT]
    if advise:
        _comment(
            drafted,
            {clients[path]: table.file.key for path, table in tables.items() if not client},
        )
    determining: list[str] = []
    for name, each in drafted.fields.items():
        if name != target and determines(each.values, drafted.fields[target].values):
            each.comments.append(f"{name} determines {target}: is it known only after the outcome?")
            determining.append(name)
    shown = join_first([*dict.fromkeys(table.file.key for table in tables.values())], 10)
    lines = [
        f"# Inferred from {_printable(shown)}. Read it and correct it.",
        *(f"# {_printable(note)}" for note in (*notes, *remarks, *unclear)),
        f"target = {quote(target)}",
        *_positive_lines(drafted.fields[target], positive_words),
    ]
    if client:
        lines.append(f"client = {quote(client)}")
    if unit:
        lines.append(f"unit = {quote(unit)}")
    if determining:
        lines.append(f"determining = {quote(determining)}")
    left_out = drafted.ignored | {
        name: NUMBERS_OF_ROWS for name, each in drafted.fields.items() if NO_INPUT in each.lines
    }
    lines += _lines(drafted, missing)
    return lines, [*_file_lines(tables, unmarked, clients)], left_out


def _positive_lines(target: Drafted, words: Collection[str]) -> Iterator[str]:
    """Yield the line with the positive one of two classes, as a guess that asks."""
    classes = target.about.categories
    if len(classes) == 2:
        name, reason = choose_positive(
            classes, np.bincount(target.values[target.values >= 0], minlength=2).tolist(), words
        )
        yield f"positive = {quote(name)}  {ask_about_positive(reason)}"


# Files --------------------------------------------------------------------------------------------


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


def _match_names(tables: dict[Path, ReadTable], target: str) -> dict[str, str]:
    """Return the columns' names by their folded forms, each in its first spelling.

    A column that other files write differently, as in "Blood Pressure" and "blood_pressure", or
    that has another name in the same place of a client's next file, has the most frequent name. Its
    name in the other files becomes a part of their `file`.
    """
    names: dict[str, str] = {}
    holders: dict[str, list[Path]] = {}  # folded name → files
    for site, table in tables.items():
        for name in table.columns:
            names.setdefault(fold(name), normalise(name))
            holders.setdefault(fold(name), []).append(site)
    renamed: dict[str, str] = {}
    for table, after in pairwise(tables.values()):
        differing = [
            (new, old) for old, new in zip(table.by_name, after.by_name, strict=False) if old != new
        ]
        if table.file.key == after.file.key and len(differing) == 1:
            renamed |= dict(differing)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(squash(renamed.get(name, name)), []).append(name)
    matched: dict[str, str] = {}
    for group in alike.values():
        files = [site for name in group for site in holders[name]]
        if len({*files}) < len(files):  # they are columns of one file, and so differ
            matched |= {name: names[name] for name in group}
            continue
        usual = max(group, key=lambda name: (name == fold(target), len(holders[name])))
        matched[usual] = names[usual]
        for other in group:
            for site in holders[other] if other != usual else ():
                known = {**tables[site].file.fields, names[usual]: FileField(name=(names[other],))}
                tables[site] = replace(
                    tables[site], file=tables[site].file.model_copy(update={"fields": known})
                )
    return matched


def _ignore_other_names(draft: Draft, tables: dict[Path, ReadTable], unit: str) -> None:
    """Ignore ignored columns in files that write their names differently, too."""
    for site, table in tables.items():
        used = {}
        for name, about in table.file.fields.items():
            if name in draft.fields or name == unit:
                used[name] = about
            else:
                draft.ignored[about.name[0]] = draft.ignored[name]
        tables[site] = replace(table, file=table.file.model_copy(update={"fields": used}))


def squash(name: str) -> str:
    """Return a column's name without case, accents, spaces, _, - and ., and a unit in brackets."""
    plain = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", name)
        if not unicodedata.combining(letter)
    )
    return re.sub(r"[\s_.\-]|[\[(][^\[\]()]*[\])]$", "", plain.casefold()) or name


# Columns ------------------------------------------------------------------------------------------


def _draft_column(draft: Draft, name: str, is_target: bool, kind: str) -> None:
    """Add a column to the fields, with comments, or to the ignored columns with a reason."""
    column = draft.columns[name]
    is_there = column.is_there
    sites = column.sites.names
    having = [sites[place] for place in np.flatnonzero(is_there).tolist()]
    if not is_target and 2 * len(having) <= len(sites) and len(having) < len(sites):
        draft.ignored[name] = (
            f"only at {join_first(having, SHOWN)}" if having else "lists, bytes or other values"
        )
        return
    if not is_target and _names_sites(column):
        draft.ignored[name] = "it says only which site a row is of"
        return
    is_number = _is_number(name, column)
    without = [sites[place] for place in np.flatnonzero(~is_there).tolist()]
    comments = [f"not at {join_first(without, SHOWN)}"] if without else []
    finding = Finding()
    if is_target:
        lines = _draft_target(name, column, kind, is_number, comments)
    else:
        finding = judge_numbers(name, column) if is_number else judge_texts(column)
        if finding.unused and without:
            finding = Finding(ignored=finding.unused)
        if finding.ignored:
            draft.ignored[name] = finding.ignored
            return
        if is_number:
            lines = [*_number_lines(column), *_code_lines(name, column)]
            comments += [
                f"{text!r} is read as a number: if it is a code, list all in categories"
                for text in column.odd_counts
                if CODE.fullmatch(text)
            ]
        else:
            texts = column.text_counts
            odd = {fold_cell(text) for text in column.odd_counts if not is_gap(text)}
            if odd <= BOOLEANS and len(column.number_counts[0]):  # True may mean 1
                texts = _usual_texts(
                    dict(zip(sites, column.texts_of_sites(), strict=True)), "categories", comments
                )
            lines = _category_lines(texts)
            comments += _question_gaps(texts, "a category")
    if finding.unused:
        comments.append(f"{finding.unused}: no input of the model; input = true makes it one")
        lines.append(NO_INPUT)
    if finding.remark:
        comments.append(finding.remark)
    about = Field.model_validate(tomllib.loads("\n".join(lines)))
    values = column.encode(about)
    comments += _announce(name, column, about, values, is_target)
    draft.fields[name] = Drafted(column, about, lines, comments, values)


def _comment(draft: Draft, files: Mapping[str, str]) -> None:
    """Add comments on what stands out, by the profiles of the sites; `files` are their keys."""
    sites = next(iter(draft.columns.values())).sites
    fields: dict[str, dict[str, ColumnProfile]] = {name: {} for name in draft.fields}
    own: dict[str, dict[str, ColumnProfile]] = {}
    for place in np.flatnonzero(sites.ends > sites.starts).tolist():
        site = sites.names[place]
        rows = slice(int(sites.starts[place]), int(sites.ends[place]))
        cells = {
            name: Cells.of(each.about, each.values[rows])
            for name, each in draft.fields.items()
            if each.column.is_there[place]
        }
        for name in draft.ignored.keys() & draft.columns.keys():
            column = draft.columns[name]
            if column.is_there[place] and column.is_there.sum() == 1:
                cells[name] = Cells.of_column(column, rows)
        for name, profiled in profile(cells).items():
            if name in fields:
                fields[name][site] = profiled
            else:
                own.setdefault(site, {})[name] = profiled
    for finding in [*match_names(fields, own), *compare(fields)]:
        if finding.kind not in QUIET:
            drafted = draft.fields[finding.field]
            advice = say_and_propose(finding, drafted.about, files)
            drafted.comments.append(f"{join_first(finding.sites, SHOWN)}: {advice}")


def _names_sites(column: Column) -> bool:
    """Return whether each of several sites has one text, or number, which no other one has."""
    if np.count_nonzero(column.counts) > 1 + len(column.sites.names):
        return False
    held = [*filter(None, column.texts_of_sites())]
    return len(held) > 1 and len(set().union(*held)) == sum(map(len, held)) == len(held)


def _propose_units(draft: Draft, target: str) -> None:
    """Ignore columns that name a person of several rows; remark those that may."""
    fields = {name: each.values for name, each in draft.fields.items() if name != target}
    for name, column in draft.columns.items():
        if name == target:
            continue
        rows = rows_of_units(name, column)
        if not rows:
            continue
        drafted = draft.fields.get(name)
        is_text = drafted is None or bool(drafted.about.categories)
        others = [values for other, values in fields.items() if other != name]
        if NAMED.fullmatch(name) or (is_text and name_persons(column, others)):
            draft.units.append(name)
            draft.ignored.setdefault(name, f"{NUMBERS_OF_PERSONS}, with {rows:.1f} rows each")
            draft.fields.pop(name, None)
        elif drafted is not None and is_text:
            drafted.comments.append(
                f"{rows:.1f} rows have the same text: if it names a person, say unit ="
                f" {quote(name)} at the top, which keeps such rows together"
            )


def _is_number(name: str, column: Column) -> bool:
    """Return whether a column holds numbers, a few of which may have faults.

    Texts among numbers are categories if there are few, and they are no exceptions (K, 1, 2, 3); or
    else the column is what most cells at half of the sites are.
    """
    odd = {text: count for text, count in column.odd_counts.items() if not is_gap(text)}
    if not odd:
        return bool((~np.isnan(column.numbers) & (column.counts > 0)).any())
    numbers, counts = column.number_counts
    are_written = are_numbers(odd, len(numbers)) or _find_flags(column)
    if are_written and not NAMED.fullmatch(name):
        return True
    signs = {text: find_sign(text) for text in odd}
    units = {fold(_unit_of(text)) for text, sign in signs.items() if sign == "unit"}
    bounds = {text[0] for text, sign in signs.items() if sign == "bound"}
    are_codes = any(PADDED.fullmatch(text) for text in column.texts.values())
    of_names = {
        "": True,
        "range": True,
        "unit": len(units) > 1 or are_codes,  # as in 0 no, 1 yes; and in 01, 23, 7p
        "bound": len(bounds) > 1 and not len(numbers),  # as in <60, ≥60
    }
    names = {text for text, sign in signs.items() if of_names.get(sign)}
    if not names:
        return True
    is_repeated = min([*odd.values(), *counts.tolist()]) > 1
    rows = sum(odd[text] for text in names)
    total = sum(odd.values()) + int(counts.sum())
    is_usual = rows >= MIXED_SHARE * total or all(signs[text] == "range" for text in names)
    if len(odd) + len(numbers) <= MAX_MIXED and is_repeated and is_usual:
        return False
    is_near = ~np.isnan(column.numbers[column.codes]) | column.rows_of(odd.keys() - names)
    present = column.sites.count(
        column.is_present & ~column.rows_of({text for text in column.odd_counts if is_gap(text)})
    )
    filled = present > 0
    return bool(2 * (2 * column.sites.count(is_near) > present)[filled].sum() >= filled.sum())


def is_gap(text: str) -> bool:
    """Return whether a text among numbers means that a value is missing."""
    return fold_cell(text) in GAPS


def _unit_of(text: str) -> str:
    found = WITH_UNIT.fullmatch(text)
    return found["unit"] if found else ""


def _number_lines(column: Column) -> list[str]:
    """Return the lines of a column of numbers, with the usual unit if each of them has one."""
    lines = ['type = "number"']
    units = Counter(_unit_of(text) for text in column.odd_counts if not is_gap(text))
    if flags := _find_flags(column):
        lines.append(f"flags = {quote(flags)}  # left out: is each a flag, and no unit?")
    elif units and "" not in units and not len(column.number_counts[0]):
        lines.append(f"unit = {quote(units.most_common(1)[0][0])}")
    return [*lines, *_gap_lines(column)]


def _find_flags(column: Column) -> list[str]:
    """Return the letters after numbers, as in 5.1 H and 3.0 L; [] of one, or of units."""
    texts = [text for text in column.odd_counts if not is_gap(text)]
    flags = [found["flag"] for text in texts if (found := FLAGGED.fullmatch(text))]
    if not flags:
        return []
    letters = {*"".join(flags).casefold()}
    are_many = len(texts) + len(column.number_counts[0]) > FEW_VALUES
    are_units = any(letters <= {*units} for units in UNIT_LETTERS)
    are_flags = are_many and not are_units and len(flags) >= NEARLY_ALL * len(texts)
    return sorted({*flags}) if are_flags and 1 < len({*flags}) <= MAX_FLAGS else []


def _code_lines(name: str, column: Column) -> list[str]:
    """Return the categories of numbers that may be codes, as a comment to uncomment; or nothing."""
    is_whole = np.isnan(column.numbers) | (column.numbers == np.round(column.numbers))
    if column.odd_counts or NEVER.fullmatch(name) or not is_whole.all():
        return []
    numbers, counts = column.number_counts
    if len(numbers) < 2 or numbers[0] < 0.0:
        return []
    is_few = len(numbers) <= MAX_FEW
    others = numbers[numbers != 0.0]  # a 0 often means something else
    is_many = (
        MAX_FEW < len(numbers) <= MAX_CATEGORIES
        and len(others) < CODE_DENSITY * (others[-1] - others[0])
        and counts.sum() >= CODE_ROWS * len(numbers)
        and counts.max() < counts.sum() / 2
    )
    is_padded = any(re.match("0[0-9]", text) for text in column.text_counts)  # 007
    if not is_few and not is_many and not (is_padded and len(numbers) <= MAX_CATEGORIES):
        return []
    _, categories = _category_lines(column.text_counts)[:2]
    return [f"# {categories}  # for codes: uncomment this line"]


def _gap_lines(column: Column) -> list[str]:
    """Return the line of a column's own markers of a missing value, if it has some."""
    gaps = sorted({text.casefold() for text in column.odd_counts if is_gap(text)})
    return [f"missingValues = [{', '.join(map(quote, gaps))}]"] if gaps else []


def _announce(
    name: str, column: Column, about: Field, values: ColumnValues, is_target: bool
) -> Iterator[str]:
    """Yield a comment for each kind of cells, or each category, that is a fault by the draft."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for entry in np.unique(column.codes[is_unknown(values)]).tolist():
        text = column.texts[entry]
        problem, _ = explain_cell(text, name, about, is_target, column.marks[entry].decimal, "")
        kinds.setdefault((problem, text_if(about.categories, text)), []).append(entry)
    for (problem, text), entries in kinds.items():
        rows = np.isin(column.codes, entries)
        count = int(rows.sum())
        having = column.sites.having(rows)
        tables = column.sites.tables
        place = column.sites.names.index(having[0])
        table = tables[0 if len(tables) == 1 else column.sites.owners.index(place)]
        first = column.texts[entries[0]]
        _, remedy = explain_cell(
            first, name, about, is_target, column.marks[entries[0]].decimal, table.file.key
        )
        cells = plural(count, "1 cell", f"{count} cells")
        others = text_if(len(entries) > 1 and not text, " and the like")
        yield (
            f"{join_first(having, MAX_FAULTS)}: {shorten(first)!r}{others} in {cells}, {problem}:"
            f" {remedy}"
        )


def _draft_target(
    name: str, column: Column, kind: str, is_number: bool, comments: list[str]
) -> list[str]:
    """Return the lines of the target, a quantity or classes.

    Append to `comments` if a site has only classes that the others do not have.
    """
    if not column.is_present.any():
        raise DataError(
            f"the target, column {name!r}, has no value: name the right column by csv.target"
        )
    numbers = column.number_counts[0]
    is_quantity = is_number and (
        len(numbers) > MAX_NUMBERED_CLASSES
        or bool((numbers != np.round(numbers)).any())
        or bool((np.abs(numbers) >= 2**53).any())
    )
    if kind == "regression" or (kind == "auto" and is_quantity):
        all_numbers = column.numbers[column.codes]
        center, scale = measure_moments(all_numbers[~np.isnan(all_numbers)]) or (0.0, 1.0)
        return [*_number_lines(column), f"center = {center!r}", f"scale = {scale or 1.0!r}"]
    faulty = {text for text in column.odd_counts if kind == "auto" and is_number}
    sites = {
        site: Counter({text: count for text, count in texts.items() if text not in faulty})
        for site, texts in zip(column.sites.names, column.texts_of_sites(), strict=True)
    }
    classes = sum(sites.values(), Counter[str]())
    problem = ""
    if len(classes) > MAX_NUMBERED_CLASSES or any(
        nearly_all_differ(len(counts), counts.total())
        for counts in sites.values()
        if any(parse_number(text) is None for text in counts)
    ):
        problem = (
            f"has {len(classes):,} different values in {classes.total():,} rows, which are no"
            " classes"
        )
    elif len({*map(fold_cell, classes)}) < 2:
        shown = repr(next(iter(classes or column.odd_counts), ""))
        problem = f"is {shown}{text_if(faulty, ' or so')} in each row: there is nothing to learn"
    if problem:
        raise DataError(
            f"the target, column {name!r}, {problem}: name the right column by csv.target"
        )
    classes = _usual_texts(sites, "class names", comments)
    lines = _category_lines(classes)
    if faulty:
        lines += _gap_lines(column)
    comments += _question_gaps(classes, "a class")
    return lines


def _usual_texts(sites: Mapping[str, Counter[str]], part: str, comments: list[str]) -> Counter[str]:
    """Return the number of rows of each text, without sites that share none with the others.

    Append a comment that names these sites; `part` says what the texts are.
    """
    strange = _find_strange(sites)
    codes = {site: ColumnProfile(counts.total(), {}, counts) for site, counts in sites.items()}
    strange += [each.sites[-1] for each in compare({part: codes}) if each.explained_by]
    if strange:
        comments.append(
            f"{join_first(strange, MAX_FAULTS)} {plural(len(strange), 'uses', 'use')} other {part}:"
            " map them in spellings"
        )
    return sum((counts for site, counts in sites.items() if site not in strange), Counter[str]())


def _question_gaps(texts: Counter[str], part: str) -> Iterator[str]:
    """Return a comment on each category that may mean a missing value."""
    return (
        f"{text!r} is {part} of {texts[text]} rows: if it means a missing value, move it from"
        " categories to missingValues"
        for text in filter(is_gap, texts)
    )


def _find_strange(sites: Mapping[str, Counter[str]]) -> list[str]:
    """Return the sites that share no class with the others, directly or by way of other sites."""
    sets = {site: frozenset(map(fold_cell, texts)) for site, texts in sites.items() if texts}
    kinds = Counter(sets.values())
    known = set(kinds.most_common(1)[0][0])
    for _ in kinds:  # then all that are linked by shared classes
        known |= set().union(*(kind for kind in kinds if kind & known))
    if len(known) < 2:  # sites of one class each
        return []
    return [site for site, each in sets.items() if not each & known]


def _category_lines(texts: Counter[str]) -> list[str]:
    """Return the categories of a column; texts that are alike if folded are spellings of one."""
    alike: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda each: (-texts[each], each)):
        alike.setdefault(fold_cell(text), []).append(text)
    names = sort_classes([spellings[0] for spellings in alike.values()])
    of_numbers = bool(names) and all(re.fullmatch("[0-9]+", name) for name in names)
    kind = "integer" if of_numbers else "string"
    are_plain = of_numbers and names == [str(int(name)) for name in names]
    written = names if are_plain else map(quote, names)
    lines = [f'type = "{kind}"', f"categories = [{', '.join(written)}]"]
    if more := sorted(spellings for spellings in alike.values() if spellings[1:]):
        spelled = (
            f"{write_key(name)} = [{', '.join(map(quote, others))}]" for name, *others in more
        )
        lines.append(f"spellings = {{{', '.join(spelled)}}}")
    return lines


# TOML ---------------------------------------------------------------------------------------------


def _lines(draft: Draft, missing: Missing) -> Iterator[str]:
    if draft.ignored:
        yield "ignore = ["
        yield from (
            f"    {quote(name)},  # {_printable(reason)}" for name, reason in draft.ignored.items()
        )
        yield "]"
    yield from (
        f"# unit = {quote(name)}  # uncomment it to keep rows of each together in the split"
        for name in draft.units
    )
    count = sum(
        int((is_missing(field.values) & field.column.is_there[field.column.sites.of_row]).sum())
        for field in draft.fields.values()
    )
    comment = ""
    if count:
        comment = f"  # {plural(count, '1 cell has', f'{count} cells have')} no value"
        if missing == "error":
            comment += ': "drop" leaves such rows out, "fill" takes the mean or no category'
    yield f"missing = {quote(missing)}{comment}"
    for name, each in draft.fields.items():
        yield ""
        yield from (f"# {_printable(comment)}" for comment in each.comments)
        yield from (f"[fields.{write_key(name)}]", *each.lines)


def _file_lines(
    tables: Mapping[Path, ReadTable], found: Mapping[Path, ReadTable], clients: Mapping[Path, str]
) -> Iterator[str]:
    """Yield the formats of files that differ from how they are read without a schema.

    What is the same in all files of a client is said once.
    """
    lines_of = {path: _lines_of_file(table, found[path]) for path, table in tables.items()}
    written: dict[str, list[str]] = {}
    for path, table in tables.items():
        files = [other for other in tables if tables[other].file.key == table.file.key]
        of_all = [line for line in lines_of[path] if all(line in lines_of[each] for each in files)]
        written[table.file.key] = of_all
        if rest := [line for line in lines_of[path] if line not in of_all]:
            written[f"{clients[path]}/{path.name}"] = rest
    every = next(iter(written.values()))
    if all(lines == every for lines in written.values()):
        written = {EVERY_FILE: every}
    for key, lines in written.items():
        if lines:
            yield from ("", f"[files.{write_key(key)}]", *lines)


def _lines_of_file(table: ReadTable, found: ReadTable) -> list[str]:
    """Return how a file is written, unless it is read so without a schema."""
    usual = SchemaFile(decimalChar=".").model_dump(exclude={"delimiter", "fields"})
    lines = [
        f"{key} = {quote(value)}"
        for key in usual
        if (value := getattr(table.file, key)) != usual[key]
        or (key == "decimalChar" and found.decimal != ".")
    ]
    for name, about in table.file.fields.items():
        if table.file.key.endswith("/*") or about.name[0].endswith((")", "]")):
            lines.append(f"# if its unit is another one, add unit, factor and offset to {name}")
        lines.append(f"fields.{write_key(name)}.name = {quote(about.name[0])}")
    return lines


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)

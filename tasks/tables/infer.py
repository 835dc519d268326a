"""Infer a schema from files, as a draft that a person reads and corrects."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean
from fairbloom.text import plural

from ..schema import (
    EVERY_FILE,
    MAX_CATEGORIES,
    MAX_TEXT,
    MISSING_VALUES,
    Field,
    File,
    fold,
    normalise,
)
from .cells import MINUS, WITH_UNIT, canonical, different_cells, parse_number, parse_numbers
from .encode import measure_moments, rows_of_clients
from .read import Table, Values, read_file
from .reasons import DataError
from .targets import join_names, sort_classes
from .warnings import find_remarks

# The names, in any case of letters, by which a target is found if no setting names it.
TARGETS = ("target", "label", "y")

# A target with more distinct whole numbers is a quantity, unless csv.kind is set.
MAX_NUMBERED_CLASSES = 100

MISSING = {each.casefold() for each in MISSING_VALUES}

# Names of columns of identifiers, if their numbers are whole and all different.
NUMBERED = re.compile(
    r"(.*[_ -])?(id|ids|mrn|nr|no|number|index|key|patient|case|person|record)", re.IGNORECASE
)

MONTH = r"(jan|feb|mar|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[^\W\d_]*\.?"
TIME = r"([T ]+[0-9]{1,2}:[0-9]{2}.*)?"
DATE = re.compile(
    rf"([0-9]{{4}}([-/.])[0-9]{{1,2}}(\2[0-9]{{1,2}})?"  # 2024-03-17, 2024-03
    rf"|[0-9]{{1,2}}([-/.])[0-9]{{1,2}}\4([0-9]{{4}}|[0-9]{{2}})"  # 17.03.2024, 3/17/24
    rf"|[0-9]{{1,2}}\.?[ -]?{MONTH}[ -]?[0-9]{{2,4}}"  # 17 March 2024, 17-Mar-24
    rf"|{MONTH} ?[0-9]{{1,2}}(st|nd|rd|th)?,? [0-9]{{4}}){TIME}",  # March 17th, 2024
    re.IGNORECASE,
)

# Identifiers of persons or cases.
IDENTIFIER = re.compile(
    r"[^@\s]+@[^@\s]+\.[^@\s]+"  # an e-mail address
    r"|(?=.*[^\W\d_])[\w./:#-]*[0-9]{4,}[\w./:#-]*"  # MRN-004711, 4711/B
    r"|(?=.*[0-9])(?=.*[a-f])[0-9a-f]{8}[0-9a-f-]*"
    # a telephone number, and no range
    r"|(?=(.*[0-9]){9})(?![0-9]{1,8} ?[-–] ?[0-9]{1,8}$)[+(]?[0-9][0-9 ()/.:-]*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ColumnSummary:
    """A summary of one site's column.

    `present` cells have a value; `numbers` has the numeric ones, without their units. `texts`
    counts the distinct texts; empty for more than MAX_CATEGORIES distinct numbers. `signs` cells
    would be numbers with a hyphen as their minus. `unit` follows every number; "" if none does.
    """

    texts: Counter[str]
    numbers: NDArray[np.float64]
    present: int
    signs: int = 0
    unit: str = ""

    @property
    def are_numbers(self) -> bool:
        """Whether most values are numbers."""
        return 2 * (len(self.numbers) + self.signs) > self.present


@dataclass
class Draft:
    """An unfinished schema: lines of fields, reasons to ignore columns, count of missing values."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    missing: int = 0


def infer_schema(
    paths: Mapping[str, Path], target: str = "", client: str = "", kind: str = "auto"
) -> str:
    """Return the schema that files suggest, as TOML with comments.

    Raise DataError if no file can be read.

    Parameters
    ----------
    paths
        The files by client.
    target, client
        The column to predict, by default the one called target, label or y; and the column that
        names each row's client, for a single file.
    kind
        "classification", "regression", or "auto", which decides by the target's values.
    """
    tables = _read_all(paths)
    first = next(iter(tables.values()))
    target = _find(first, target, "csv.target", TARGETS)
    sites = tables
    if client:
        rows = rows_of_clients(first.find(_find(first, client, "csv.client")))
        sites = {name: first.take(each) for name, each in rows.items() if name}
    names: dict[str, str] = {}  # folded name → its first spelling
    for table in sites.values():
        for name in table.columns:
            names.setdefault(fold(name), normalise(name))
    names.pop(fold(client), None)
    draft = Draft()
    for name in names.values():
        _draft_column(draft, name, sites, name == target, kind)
    if target not in draft.fields or len(draft.fields) == 1:
        raise DataError(
            f"{first.path} has no column but the target {target!r} that can be learned from"
        )
    head = (
        f"# Inferred from {', '.join(path.name for path in list(paths.values())[:10])}. Read it and"
        " correct it."
    )
    return "\n".join([head, *_lines(draft, target, client, tables)]) + "\n"


def _read_all(paths: Mapping[str, Path]) -> dict[str, Table]:
    """Return the tables by client, without unreadable ones; raise DataError if all are."""
    tables: dict[str, Table] = {}
    errors: list[DataError] = []
    for name, path in paths.items():
        for encoding in ("utf-8", "cp1252"):  # cp1252: Windows in Western Europe
            try:
                tables[name] = read_file(path, File(encoding=encoding))
            except DataError as error:
                errors.append(error)
                if error.why == "not-utf-8":
                    continue
            break
    if not tables:
        raise errors[0]
    return tables


def _find(table: Table, name: str, setting: str, usual: Collection[str] = ()) -> str:
    """Return the name of the column that `name` means, or if it is "", of the only `usual` one.

    Raise DataError if there is no such column, or several.
    """
    usable = [each for each, values in table.columns.items() if values is not None]
    if name:
        found = [each for each in usable if fold(each) == fold(name)]
        hint = did_you_mean(name, table.columns)
    else:
        found = [each for each in usable if each.lower() in usual]
        hint = "the first line must name the columns; "
    if len(found) == 1:
        return normalise(found[0])
    problem = f"has no column {name or join_names([*usual])}"
    if found:
        problem = f"has the columns {join_names(found)}"
    known = join_names([*table.columns], most=100)  # any of them may be the one that is needed
    raise DataError(f"{table.path} {problem}: {hint}name one of {known} by {setting}")


# Columns ------------------------------------------------------------------------------------------


def _summarise(table: Table, values: Values) -> ColumnSummary:
    numbers, wrong, gone = parse_numbers(values, table.file, (), MISSING)
    present = numbers[~wrong & ~gone]
    if not wrong.any() and len(np.unique(present)) > MAX_CATEGORIES:
        return ColumnSummary(Counter(), present, len(present))
    cells, codes = different_cells(values)
    texts: Counter[str] = Counter()
    for cell, count in zip(cells, np.bincount(codes, minlength=len(cells)).tolist(), strict=True):
        if count and normalise(cell).casefold() not in MISSING:
            texts[canonical(normalise(cell), table.decimal)] += count
    with_minus = [text for text in texts if MINUS.search(text)]
    signs = sum(
        texts[text]
        for text in with_minus
        if parse_number(MINUS.sub("-", text).replace(",", ".")) is not None
    )
    unit_of = {text: found["unit"] for text in texts if (found := WITH_UNIT.fullmatch(text))}
    units = {*unit_of.values()}
    unit = ""
    if len(units) == 1:
        numbers, wrong, gone = parse_numbers(values, table.file, units, MISSING)
        if len(unit_of) == len(texts):
            (unit,) = units
    return ColumnSummary(texts, numbers[~wrong & ~gone], texts.total(), signs, unit)


def _draft_column(
    draft: Draft, name: str, sites: Mapping[str, Table], is_target: bool, kind: str
) -> None:
    """Add a column to the fields, with comments, or to the ignored columns with a reason."""
    columns = {
        site: (table, values)
        for site, table in sites.items()
        if (values := table.find(name)) is not None
    }
    if not is_target and 2 * len(columns) <= len(sites) and len(columns) < len(sites):
        draft.ignored[name] = "lists, bytes or other values"
        if columns:
            draft.ignored[name] = f"only at {join_names([*columns])}"
        return
    summaries = {site: _summarise(*each) for site, each in columns.items()}
    filled = {site: summary for site, summary in summaries.items() if summary.present}
    numeric = 2 * sum(each.are_numbers for each in filled.values()) >= len(filled)
    comments = []
    if without := [site for site in sites if site not in columns]:
        comments.append(f"not at {join_names(without)}")
    if is_target:
        lines = _draft_target(name, filled, kind, numeric, comments)
    elif reason := _why_ignored(name, filled, numeric):
        draft.ignored[name] = reason
        return
    elif numeric:
        units = [each.unit for each in filled.values() if each.unit]
        lines = ['type = "number"']
        if units:
            lines.append(f"unit = {quote(units[0])}")
    else:
        lines = _category_lines(_count_texts(filled.values()))
    about = Field.model_validate(tomllib.loads("\n".join(lines)))
    values = {site: each.numbers for site, each in filled.items()}
    if about.categories:
        values = {
            site: np.array([about.places.get(text, -1) for text in each.texts])
            for site, each in filled.items()
        }
    for site, remark in find_remarks(name, about, values):
        comments.append(f"{site}: {remark}" if site else remark)
    draft.fields[name] = [
        *(f"# {_printable(each)}" for each in comments),
        f"[fields.{_key(name)}]",
        *lines,
    ]
    draft.missing += sum(len(sites[site]) - each.present for site, each in summaries.items())


def _why_ignored(name: str, summaries: Mapping[str, ColumnSummary], numeric: bool) -> str:
    """Return why a column is left out; "" if it is a quantity, or its texts may be categories."""
    if numeric:
        are_identifiers = all(
            len(each.numbers) >= 20
            and len(np.unique(each.numbers)) == len(each.numbers)
            and bool((each.numbers == np.round(each.numbers)).all())
            for each in summaries.values()
        )
        if NUMBERED.fullmatch(name) and are_identifiers:
            return "it looks like numbers of persons or cases"
        return ""
    texts = _count_texts(summaries.values())
    if len(texts) > MAX_CATEGORIES:
        return f"it has {len(texts):,} different texts"
    if (longest := max(map(len, texts), default=0)) > MAX_TEXT:
        return f"a text of it has {longest:,} characters"
    kinds = {"dates": DATE, "numbers of persons or cases, or addresses": IDENTIFIER}
    for kind, pattern in kinds.items():
        if 2 * sum(pattern.fullmatch(each) is not None for each in texts) > len(texts):
            return f"it looks like {kind}"
    if any(nearly_all_differ(len(each.texts), each.present) for each in summaries.values()):
        return "nearly every row has a different text, which may say who it is about"
    return ""


def _draft_target(
    name: str,
    summaries: Mapping[str, ColumnSummary],
    kind: str,
    numeric: bool,
    comments: list[str],
) -> list[str]:
    """Return the lines of the target, a quantity or classes.

    Append to `comments` if a site has only classes that the others do not have.
    """
    if not summaries:
        raise DataError(
            f"the target, column {name!r}, has no value: name the right column by csv.target"
        )
    texts = _count_texts(summaries.values())
    numbers = [number for text in texts if (number := parse_number(text)) is not None]
    is_quantity = numeric and (
        not all(each.texts for each in summaries.values())
        or len(numbers) > MAX_NUMBERED_CLASSES
        or any(abs(each) >= 2**53 or each != round(each) for each in numbers)
    )
    if kind == "regression" or (kind == "auto" and is_quantity):
        moments = measure_moments(np.concatenate([each.numbers for each in summaries.values()]))
        center, scale = moments or (0.0, 1.0)
        return ['type = "number"', f"center = {center!r}", f"scale = {scale or 1.0!r}"]
    if kind == "auto":
        summaries = {site: _without_stray_texts(each) for site, each in summaries.items()}
    classes = _count_texts(summaries.values())
    of_texts = [
        each.texts
        for each in summaries.values()
        if any(parse_number(text) is None for text in each.texts)
    ]
    problem = ""
    if len(classes) > MAX_NUMBERED_CLASSES or any(
        nearly_all_differ(len(each), each.total()) for each in of_texts
    ):
        problem = (
            f"has {len(classes):,} different values in {classes.total():,} rows, which are no"
            " classes"
        )
    elif len({text.casefold() for text in classes}) < 2:
        problem = f"is {next(iter(classes), '')!r} in each row: there is nothing to learn"
    if problem:
        raise DataError(
            f"the target, column {name!r}, {problem}: name the right column by csv.target"
        )
    sets = {
        site: frozenset(text.casefold() for text in each.texts) for site, each in summaries.items()
    }
    known = set(Counter(sets.values()).most_common(1)[0][0])
    for _ in sets:  # as often as there are sites: then all that are linked by shared classes
        known |= set().union(*(each for each in sets.values() if each & known))
    strange = [site for site, each in sets.items() if each and not each & known]
    if strange:
        comments.append(
            f"the classes at {join_names(strange)} are none of these: add them as spellings"
        )
    usual = [each for site, each in summaries.items() if site not in strange]
    return _category_lines(_count_texts(usual))


def _without_stray_texts(summary: ColumnSummary) -> ColumnSummary:
    """Return the summary without texts among numbers, which are faults and not classes."""
    if not summary.are_numbers:
        return summary
    numbers = {
        text: count for text, count in summary.texts.items() if parse_number(text) is not None
    }
    return replace(summary, texts=Counter(numbers))


def _count_texts(summaries: Iterable[ColumnSummary]) -> Counter[str]:
    return sum((each.texts for each in summaries), Counter())


def _category_lines(texts: Counter[str]) -> list[str]:
    """Return the categories of a column; texts that differ only in case are spellings of one."""
    alike: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda each: (-texts[each], each)):
        alike.setdefault(text.casefold(), []).append(text)
    names = sort_classes([spellings[0] for spellings in alike.values()])
    of_numbers = bool(names) and all(re.fullmatch("[0-9]+", name) for name in names)
    kind = "integer" if of_numbers else "string"
    written = [quote(name) for name in names]
    if of_numbers and names == [str(int(name)) for name in names]:
        written = names
    lines = [f'type = "{kind}"', f"categories = [{', '.join(written)}]"]
    more = sorted(spellings for spellings in alike.values() if spellings[1:])
    if more:
        spelled = (f"{_key(name)} = [{', '.join(map(quote, others))}]" for name, *others in more)
        lines.append(f"spellings = {{{', '.join(spelled)}}}")
    return lines


def nearly_all_differ(different: int, rows: int) -> bool:
    """Return whether nearly every row has another text, as in columns of names or remarks."""
    return rows >= 20 and different >= 0.9 * rows


# TOML ---------------------------------------------------------------------------------------------


def _lines(draft: Draft, target: str, client: str, tables: Mapping[str, Table]) -> Iterator[str]:
    yield f"target = {quote(target)}"
    if client:
        yield f"client = {quote(client)}"
    if draft.ignored:
        yield "ignore = ["
        yield from (
            f"    {quote(name)},  # {_printable(reason)}" for name, reason in draft.ignored.items()
        )
        yield "]"
    comment = ""
    if draft.missing:
        cells = plural(draft.missing, "1 cell has", f"{draft.missing} cells have")
        remedy = '"drop" leaves such rows out, "fill" takes the mean or no category'
        comment = f"  # {cells} no value: {remedy}"
    yield f'missing = "error"{comment}'
    for lines in draft.fields.values():
        yield from ("", *lines)
    written = {table.path.name: (table.file.encoding, table.decimal) for table in tables.values()}
    if len({*written.values()}) == 1:
        written = {EVERY_FILE: next(iter(written.values()))}
    for file, (encoding, decimal) in written.items():
        lines = []
        if encoding != "utf-8":
            lines.append(f"encoding = {quote(encoding)}")
        if decimal != ".":
            lines.append(f"decimalChar = {quote(decimal)}")
        if lines:
            yield from ("", f"[files.{_key(file)}]", *lines)


def quote(text: str) -> str:
    """Return a text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quote(name)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in text)

"""A schema, as files suggest it: what a person then reads and corrects."""

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

TARGETS = ("target", "label", "y")
"""One of these columns is the target where none is named, in any case of letters."""

MAX_NUMBERED_CLASSES = 100
"""A target of more different whole numbers is a quantity, unless csv.kind says otherwise."""

MISSING = {each.casefold() for each in MISSING_VALUES}

NUMBERED = re.compile(
    r"(.*[_ -])?(id|ids|mrn|nr|no|number|index|key|patient|case|person|record)", re.IGNORECASE
)
"""Names of columns whose whole numbers, each of which is there once, are no quantities."""

MONTH = r"(jan|feb|mar|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[^\W\d_]*\.?"
TIME = r"([T ]+[0-9]{1,2}:[0-9]{2}.*)?"
DATE = re.compile(
    rf"([0-9]{{4}}([-/.])[0-9]{{1,2}}(\2[0-9]{{1,2}})?"  # 2024-03-17, 2024-03
    rf"|[0-9]{{1,2}}([-/.])[0-9]{{1,2}}\4([0-9]{{4}}|[0-9]{{2}})"  # 17.03.2024, 3/17/24
    rf"|[0-9]{{1,2}}\.?[ -]?{MONTH}[ -]?[0-9]{{2,4}}"  # 17 March 2024, 17-Mar-24
    rf"|{MONTH} ?[0-9]{{1,2}}(st|nd|rd|th)?,? [0-9]{{4}}){TIME}",  # March 17th, 2024
    re.IGNORECASE,
)

IDENTIFIER = re.compile(
    r"[^@\s]+@[^@\s]+\.[^@\s]+"  # an e-mail address
    r"|(?=.*[^\W\d_])[\w./:#-]*[0-9]{4,}[\w./:#-]*"  # MRN-004711, 4711/B
    r"|(?=.*[0-9])(?=.*[a-f])[0-9a-f]{8}[0-9a-f-]*"
    # a telephone number, and no range
    r"|(?=(.*[0-9]){9})(?![0-9]{1,8} ?[-–] ?[0-9]{1,8}$)[+(]?[0-9][0-9 ()/.:-]*",
    re.IGNORECASE,
)
"""Numbers of persons or cases."""


@dataclass(frozen=True)
class Look:
    """A column as one site has it: how many cells hold a value, and those that are numbers but for a unit.

    `texts` are its different texts and how often each is there; none where it has more than
    MAX_CATEGORIES different numbers. `signs` cells are numbers but for their minus. `unit` stands
    behind every number, "": none does.
    """

    texts: Counter[str]
    numbers: NDArray[np.float64]
    present: int
    signs: int = 0
    unit: str = ""

    @property
    def are_numbers(self) -> bool:
        """Whether it is of numbers, for the most part."""
        return 2 * (len(self.numbers) + self.signs) > self.present


@dataclass
class Draft:
    """A schema in the making: lines of fields, reasons of ignored columns, and how many cells have no value."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    lacking: int = 0


def infer_schema(
    paths: Mapping[str, Path], target: str = "", client: str = "", kind: str = "auto"
) -> str:
    """Return the schema that files suggest, as TOML with comments.

    Raise DataError where no file can be read.

    Parameters
    ----------
    paths
        The files by client.
    target, client
        The column to predict, by default the one called target, label or y; and the one that names
        each row's client, where there is one file.
    kind
        "classification", "regression", or "auto", which goes by the target's values.
    """
    tables = _read_all(paths)
    first = next(iter(tables.values()))
    target = _find(first, target, "csv.target", TARGETS)
    sites = tables
    if client:
        rows = rows_of_clients(first.find(_find(first, client, "csv.client")))
        sites = {name: first.take(each) for name, each in rows.items() if name}
    names: dict[str, str] = {}  # as they are written first
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
    """Return the tables by client, without those that cannot be read, unless that is all of them."""
    tables: dict[str, Table] = {}
    errors: list[DataError] = []
    for name, path in paths.items():
        for encoding in ("utf-8", "cp1252"):  # the second as Windows writes in Western Europe
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
    """Return a column's name, or where none is named that of the one called as usual.

    DataError where it is not one.
    """
    usable = [each for each, values in table.columns.items() if values is not None]
    found = [
        each for each in usable if (fold(each) == fold(name) if name else each.lower() in usual)
    ]
    if len(found) == 1:
        return normalise(found[0])
    problem = (
        f"has the columns {join_names(found)}"
        if found
        else f"has no column {name or join_names([*usual])}"
    )
    hint = did_you_mean(name, table.columns) if name else "the first line must name the columns; "
    there = join_names([*table.columns], most=100)  # any of them may be the one that is needed
    raise DataError(f"{table.path} {problem}: {hint}name one of {there} by {setting}")


# Columns ------------------------------------------------------------------------------------------


def _look(table: Table, values: Values) -> Look:
    numbers, wrong, gone = parse_numbers(values, table.file, (), MISSING)
    there = numbers[~wrong & ~gone]
    if not wrong.any() and len(np.unique(there)) > MAX_CATEGORIES:
        return Look(Counter(), there, len(there))
    cells, codes = different_cells(values)
    texts: Counter[str] = Counter()
    for cell, count in zip(cells, np.bincount(codes, minlength=len(cells)).tolist(), strict=True):
        if count and normalise(cell).casefold() not in MISSING:
            texts[canonical(normalise(cell), table.decimal)] += count
    typographic = [text for text in texts if MINUS.search(text)]
    signs = [
        text
        for text in typographic
        if parse_number(MINUS.sub("-", text).replace(",", ".")) is not None
    ]
    with_unit = {text: found["unit"] for text in texts if (found := WITH_UNIT.fullmatch(text))}
    unit = ""
    if len({*with_unit.values()}) == 1:
        unit = next(iter(with_unit.values())) if len(with_unit) == len(texts) else ""
        numbers, wrong, gone = parse_numbers(values, table.file, {*with_unit.values()}, MISSING)
    return Look(
        texts, numbers[~wrong & ~gone], texts.total(), sum(texts[text] for text in signs), unit
    )


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
        draft.ignored[name] = (
            f"only at {join_names([*columns])}" if columns else "lists, bytes or other values"
        )
        return
    looks = {site: _look(*each) for site, each in columns.items()}
    filled = {site: look for site, look in looks.items() if look.present}
    numeric = 2 * sum(each.are_numbers for each in filled.values()) >= len(filled)
    lacking = join_names([site for site in sites if site not in columns])
    comments = [f"not at {lacking}"] if lacking else []
    if is_target:
        lines = _draft_target(name, filled, kind, numeric, comments)
    elif reason := _why_ignored(name, filled, numeric):
        draft.ignored[name] = reason
        return
    elif numeric:
        units = [each.unit for each in filled.values() if each.unit]
        lines = ['type = "number"', *(f"unit = {quote(unit)}" for unit in units[:1])]
    else:
        lines = _category_lines(_add(filled.values()))
    about = Field.model_validate(tomllib.loads("\n".join(lines)))
    values = {
        site: (
            np.array([about.places.get(text, -1) for text in each.texts])
            if about.categories
            else each.numbers
        )
        for site, each in filled.items()
    }
    comments += [
        f"{site}: {remark}" if site else remark
        for site, remark in find_remarks(name, about, values)
    ]
    draft.fields[name] = [
        *(f"# {_printable(each)}" for each in comments),
        f"[fields.{_key(name)}]",
        *lines,
    ]
    draft.lacking += sum(len(sites[site]) - look.present for site, look in looks.items())


def _why_ignored(name: str, looks: Mapping[str, Look], numeric: bool) -> str:
    """Return why a column is left out, "" where it is a quantity, or its texts may be categories."""
    if numeric:
        are_own = [
            len(each.numbers) >= 20
            and len(np.unique(each.numbers)) == len(each.numbers)
            and bool((each.numbers == np.round(each.numbers)).all())
            for each in looks.values()
        ]
        return (
            "it looks like numbers of persons or cases"
            if NUMBERED.fullmatch(name) and all(are_own)
            else ""
        )
    texts = _add(looks.values())
    if len(texts) > MAX_CATEGORIES:
        return f"it has {len(texts):,} different texts"
    if (longest := max(map(len, texts), default=0)) > MAX_TEXT:
        return f"a text of it has {longest:,} characters"
    kinds = {"dates": DATE, "numbers of persons or cases, or addresses": IDENTIFIER}
    for kind, pattern in kinds.items():
        if 2 * sum(pattern.fullmatch(each) is not None for each in texts) > len(texts):
            return f"it looks like {kind}"
    if any(nearly_all_differ(len(each.texts), each.present) for each in looks.values()):
        return "nearly every row has a different text, which may say who it is about"
    return ""


def _draft_target(
    name: str, looks: Mapping[str, Look], kind: str, numeric: bool, comments: list[str]
) -> list[str]:
    """Return the lines of the target, a quantity or classes.

    Add a comment where sites share no class.
    """
    if not looks:
        raise DataError(
            f"the target, column {name!r}, has no value: name the right column by csv.target"
        )
    numbers = [each for text in _add(looks.values()) if (each := parse_number(text)) is not None]
    is_quantity = numeric and (
        not all(each.texts for each in looks.values())
        or len(numbers) > MAX_NUMBERED_CLASSES
        or any(abs(each) >= 2**53 or each != round(each) for each in numbers)
    )
    if kind == "regression" or (kind == "auto" and is_quantity):
        center, scale = measure_moments(
            np.concatenate([each.numbers for each in looks.values()])
        ) or (0.0, 1.0)
        return ['type = "number"', f"center = {center!r}", f"scale = {scale or 1.0!r}"]
    if kind == "auto":  # a text among numbers is a fault
        looks = {
            site: (
                replace(
                    each,
                    texts=Counter(
                        {t: count for t, count in each.texts.items() if parse_number(t) is not None}
                    ),
                )
                if each.are_numbers
                else each
            )
            for site, each in looks.items()
        }
    classes = _add(looks.values())
    of_texts = [
        each.texts
        for each in looks.values()
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
    sets = {site: frozenset(text.casefold() for text in each.texts) for site, each in looks.items()}
    known = set(Counter(sets.values()).most_common(1)[0][0])
    for _ in sets:  # whoever shares a class with those that share one
        known |= set().union(*(each for each in sets.values() if each & known))
    if strange := [site for site, each in sets.items() if each and not each & known]:
        comments.append(
            f"the classes at {join_names(strange)} are none of these: add them as spellings"
        )
    return _category_lines(_add(each for site, each in looks.items() if site not in strange))


def _add(looks: Iterable[Look]) -> Counter[str]:
    return sum((each.texts for each in looks), Counter())


def _category_lines(texts: Counter[str]) -> list[str]:
    """Return the categories of a column, with texts that differ in case alone as spellings of one."""
    alike: dict[str, list[str]] = {}
    for text in sorted(texts, key=lambda each: (-texts[each], each)):
        alike.setdefault(text.casefold(), []).append(text)
    names = sort_classes([spellings[0] for spellings in alike.values()])
    of_numbers = all(re.fullmatch("[0-9]+", name) for name in names) and bool(names)
    written = ", ".join(
        names if of_numbers and names == [str(int(each)) for each in names] else map(quote, names)
    )
    lines = [f'type = "{"integer" if of_numbers else "string"}"', f"categories = [{written}]"]
    more = sorted(spellings for spellings in alike.values() if spellings[1:])
    if more:
        spelled = (f"{_key(name)} = [{', '.join(map(quote, others))}]" for name, *others in more)
        lines.append(f"spellings = {{{', '.join(spelled)}}}")
    return lines


def nearly_all_differ(different: int, rows: int) -> bool:
    """Return whether nearly every row has a different text, as with names, addresses or remarks."""
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
    have = "1 cell has" if draft.lacking == 1 else f"{draft.lacking} cells have"
    remark = (
        f'  # {have} no value: "drop" leaves such rows out, "fill" takes the mean or no category'
    )
    yield f'missing = "error"{remark if draft.lacking else ""}'
    for lines in draft.fields.values():
        yield from ("", *lines)
    written = {table.path.name: (table.file.encoding, table.decimal) for table in tables.values()}
    if len({*written.values()}) == 1:
        written = {EVERY_FILE: next(iter(written.values()))}
    for file, (encoding, decimal) in written.items():
        about = [f"encoding = {quote(encoding)}"] if encoding != "utf-8" else []
        about += [f"decimalChar = {quote(decimal)}"] if decimal != "." else []
        if about:
            yield from ("", f"[files.{_key(file)}]", *about)


def quote(text: str) -> str:
    """Return a text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quote(name)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in text)

"""A schema, as files suggest it: what a person then reads and corrects."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairbloom.errors import did_you_mean

from ..schema import EVERY_FILE, MAX_CATEGORIES, MAX_TEXT, MISSING_VALUES, File, Schema, fold, normalise, parse_schema
from .reading.numbers import canonical, parse_number
from .reading.reader import looks_like_data, no_header_error, read
from .reading.table import Table, Values
from .reasons import DataError
from .remarks import find_remarks
from .rows import MINUS, WITH_UNIT, Cells, different_cells, measure_moments, parse_numbers, read_column, unit_of
from .suspicious import look_like_dates, look_like_identifiers, nearly_all_differ
from .targets import MAX_COLUMNS_NAMED, join_names, sort_classes

TARGETS = ("target", "label", "y")
"""One of these columns is the target where none is named, in any case of letters."""

MAX_NUMBERED_CLASSES = 100
"""A target of more different whole numbers is a quantity, unless csv.kind says otherwise."""

MISSING = {each.casefold() for each in MISSING_VALUES}

IDENTIFIER = re.compile(r"(.*[_ -])?(id|ids|mrn|nr|no|number|index|key|patient|case|person|record)", re.IGNORECASE)
"""Names of columns whose whole numbers, each of which is there once, are no quantities."""


@dataclass(frozen=True)
class Found:
    """A column as one site has it: how many cells hold a value, and of these numbers or nearly numbers."""

    values: Values
    table: Table
    texts: Counter[str]
    present: int
    numbers: int
    units: Counter[str]

    @property
    def are_numbers(self) -> bool:
        """Whether it is of numbers, for the most part."""
        return 2 * self.numbers > self.present


@dataclass
class Draft:
    """The lines of a schema: fields and ignored columns by name, and the comments on them."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)


def infer_schema(paths: Mapping[str, Path], target: str = "", client: str = "", kind: str = "auto") -> str:
    """Return the schema that files suggest, as TOML with comments; raise DataError where no file can be read.

    Parameters
    ----------
    paths
        The files by client.
    target, client
        The column to predict, by default the one called target, label or y; and the one that names each row's client,
        where there is one file.
    kind
        "classification", "regression", or "auto", which goes by the target's values.
    """
    tables = _read_all(paths)
    sites = _sites_of(tables, client)
    first = next(iter(sites.values()))
    target = find_target(next(iter(tables.values())), target)
    draft = Draft()
    for name in _columns_of(sites, client):
        _draft_column(draft, name, sites, target, kind)
    if target not in draft.fields or len(draft.fields) == 1:
        raise DataError(f"{first.source.path} has no column but the target {target!r} that can be learned from")
    bare = "\n".join(_lines(draft, target, client, "error", tables))
    schema = parse_schema(bare, "the inferred schema")
    missing = _remark(draft, schema, sites)
    head = [f"# Inferred from {', '.join(path.name for path in list(paths.values())[:10])}. Read it and correct it."]
    return "\n".join([*head, *_lines(draft, target, client, missing, tables)]) + "\n"


# Files ----------------------------------------------------------------------------------------------------------------


def _read_all(paths: Mapping[str, Path]) -> dict[str, Table]:
    """Return the tables by client, without those that cannot be read, unless that is all of them."""
    tables: dict[str, Table] = {}
    errors: list[DataError] = []
    for name, path in paths.items():
        try:
            tables[name] = read_guessing(path)
        except DataError as error:
            errors.append(error)
    if not tables:
        raise errors[0]
    return tables


def read_guessing(path: Path) -> Table:
    """Return a table; one that is not in UTF-8 is read as Windows writes it in Western Europe."""
    try:
        return read(path, File())
    except DataError as error:
        if error.why != "not-utf-8":
            raise
        return read(path, File(encoding="cp1252"))


def _sites_of(tables: Mapping[str, Table], client: str) -> dict[str, Table]:
    """Return the table of each site: of a file, or of each client that a column of the one file names."""
    if not client:
        return dict(tables)
    (table,) = tables.values()
    cells, codes = different_cells(_find(table, client, "csv.client")[1])
    names = [normalise(cell) for cell in cells]
    return {
        name: table.take(np.flatnonzero(np.isin(codes, [k for k, each in enumerate(names) if each == name])))
        for name in sorted({*names} - {""})
    }


def _find(table: Table, name: str, setting: str) -> tuple[str, Values]:
    """Return a column and its name as the file has it, in any case of letters; raise DataError where there is none."""
    if (values := table.find(name)) is not None:
        return table.by_name[fold(name)], values
    if looks_like_data([*table.columns]):
        raise no_header_error(table.source, [*table.columns])
    raise DataError(
        f"{setting} = {name!r}: {table.source.path} has no such column; {did_you_mean(name, table.columns)}the columns "
        f"are {join_names([*table.columns], MAX_COLUMNS_NAMED)}"
    )


def find_target(table: Table, name: str) -> str:
    """Return the column that is predicted; raise DataError where none is named and none is called as one."""
    if name:
        return _find(table, name, "csv.target")[0]
    found = [column for column in table.columns if column.lower() in TARGETS]
    if len(found) > 1:
        raise DataError(f"{table.source.path} has the columns {join_names(found)}: name the target by csv.target")
    if not found:
        if looks_like_data([*table.columns]):
            raise no_header_error(table.source, [*table.columns])
        raise DataError(
            f"{table.source.path} has no column called target, label or y: name the target by csv.target; the columns "
            f"are {join_names([*table.columns], MAX_COLUMNS_NAMED)}"
        )
    return found[0]


def _columns_of(sites: Mapping[str, Table], client: str) -> list[str]:
    """Return the columns of all sites as they are written first, those of the first site in its order."""
    names: dict[str, str] = {}
    for table in sites.values():
        for name in table.columns:
            names.setdefault(fold(name), normalise(name))
    names.pop(fold(client), None)
    return [*names.values()]


# Columns --------------------------------------------------------------------------------------------------------------


def _look(table: Table, name: str) -> Found | None:
    """Return a column as a site has it; None where it has none, or one of lists, bytes and so on."""
    values = table.find(name)
    if values is None:
        return None
    numbers, wrong, gone = parse_numbers(values, table, (), MISSING)
    good = int((~wrong & ~gone).sum())
    if not wrong.any() and len(np.unique(numbers[~gone])) > MAX_CATEGORIES:
        return Found(values, table, Counter(), good, good, Counter())
    cells, codes = different_cells(values)
    texts: Counter[str] = Counter()
    counts = np.bincount(codes, minlength=len(cells))
    for cell, count in zip(cells, counts.tolist(), strict=True):
        if count and normalise(cell).casefold() not in MISSING:
            texts[canonical(normalise(cell), table.decimal)] += count
    units: Counter[str] = Counter()
    nearly = 0
    for text, count in texts.items():
        if MINUS.search(text) and parse_number(MINUS.sub("-", text).replace(",", ".")) is not None:
            nearly += count
        elif found := WITH_UNIT.fullmatch(text):
            units[found["unit"].strip()] += count
    nearly += sum(units.values()) if len(units) == 1 else 0
    return Found(values, table, texts, texts.total(), good + nearly, units)


def _draft_column(draft: Draft, name: str, sites: Mapping[str, Table], target: str, kind: str) -> None:
    """Add a column to the fields, or to the ignored columns with a reason."""
    found = {site: look for site, table in sites.items() if (look := _look(table, name)) is not None}
    is_target = name == normalise(target)
    filled = {site: each for site, each in found.items() if each.present}
    if not is_target and 2 * len(found) <= len(sites) and len(found) < len(sites):
        where = f"only at {join_names([*found])}" if found else "lists, bytes or other values"
        draft.ignored[name] = where
        return
    if len(found) < len(sites):
        draft.comments.setdefault(name, []).append(
            f"not at {join_names([site for site in sites if site not in found])}"
        )
    of_numbers = sum(each.are_numbers for each in filled.values())
    numeric = 2 * of_numbers >= len(filled)
    if is_target:
        _draft_target(draft, name, filled, kind, numeric=numeric)
    elif numeric:
        if reason := _why_no_quantity(name, filled):
            draft.ignored[name] = reason
        else:
            draft.fields[name] = ['type = "number"', *_unit_line(filled)]
    elif reason := _why_no_categories(filled):
        draft.ignored[name] = reason
    else:
        draft.fields[name] = _category_lines([each.texts for each in filled.values()])


def _unit_line(found: Mapping[str, Found]) -> list[str]:
    """Return the unit of a column in which every cell of a site has the same one behind its number."""
    for each in found.values():
        if len(each.units) == 1 and each.units.total() == each.present:
            return [f"unit = {quote(next(iter(each.units)))}"]
    return []


def _why_no_quantity(name: str, found: Mapping[str, Found]) -> str:
    """Return why a column of numbers is left out, "" where it is a quantity."""
    if not IDENTIFIER.fullmatch(name):
        return ""
    for each in found.values():
        numbers, wrong, gone = parse_numbers(each.values, each.table, (), MISSING)
        there = numbers[~wrong & ~gone]
        if len(there) < 20 or len(np.unique(there)) < len(there) or (there != np.round(there)).any():
            return ""
    return "it looks like numbers of persons or cases"


def _why_no_categories(found: Mapping[str, Found]) -> str:
    """Return why a column of texts is left out, "" where its texts may be categories."""
    texts: Counter[str] = sum((each.texts for each in found.values()), Counter())
    if len(texts) > MAX_CATEGORIES:
        return f"it has {len(texts):,} different texts"
    if (longest := max(map(len, texts), default=0)) > MAX_TEXT:
        return f"a text of it has {longest:,} characters"
    if look_like_dates(texts):
        return "it looks like dates"
    if look_like_identifiers(texts):
        return "it looks like numbers of persons or cases, or addresses"
    if any(nearly_all_differ(len(each.texts), each.present) for each in found.values()):
        return "nearly every row has a different text, which may say who it is about"
    return ""


def _draft_target(draft: Draft, name: str, found: Mapping[str, Found], kind: str, *, numeric: bool) -> None:
    texts: Counter[str] = sum((each.texts for each in found.values()), Counter())
    values = [parse_number(text) for text in texts]
    numbers = [each for each in values if each is not None]
    is_quantity = numeric and (
        not all(each.texts for each in found.values())
        or len(numbers) > MAX_NUMBERED_CLASSES
        or any(not _is_whole(each) for each in numbers)
    )
    if kind == "regression" or (kind == "auto" and is_quantity):
        moments = []
        for each in found.values():
            cells, wrong, gone = parse_numbers(each.values, each.table, (), MISSING)
            moments.append(measure_moments(cells[~wrong & ~gone]))
        center, scale = combine_moments([each for each in moments if each is not None])
        draft.fields[name] = ['type = "number"', f"center = {center!r}", f"scale = {scale or 1.0!r}"]
        return
    # A text among numbers is a fault.
    kept = [_numbers_of(e.texts) if kind == "auto" and e.are_numbers else e.texts for e in found.values()]
    _check_classes(name, found, kept)
    draft.fields[name] = _category_lines(_sharing(draft, name, [*found], kept))


def _is_whole(number: float) -> bool:
    """Return whether a number may be the number of a class."""
    return abs(number) < 2**53 and number == round(number)


def _numbers_of(texts: Counter[str]) -> Counter[str]:
    return Counter({text: count for text, count in texts.items() if parse_number(text) is not None})


def _check_classes(name: str, found: Mapping[str, Found], kept: Sequence[Counter[str]]) -> None:
    """Raise DataError when the target's values are no classes."""
    classes: Counter[str] = sum(kept, Counter())
    place = f"the target, column {name!r} of {next(iter(found.values())).table.source.path}," if found else name
    remedy = "name the right column by csv.target"
    if len(classes) > MAX_NUMBERED_CLASSES or any(
        nearly_all_differ(len(each), each.total()) and any(parse_number(text) is None for text in each) for each in kept
    ):
        raise DataError(
            f"{place} has {len(classes):,} different values in {classes.total():,} rows, which are no classes: {remedy}"
        )
    if len({normalise(text).casefold() for text in classes}) < 2:
        there = f"is {next(iter(classes))!r} in each row" if classes else "has no value"
        raise DataError(f"{place} {there}: there is nothing to learn: {remedy}")


def _sharing(draft: Draft, name: str, sites: Sequence[str], kept: Sequence[Counter[str]]) -> list[Counter[str]]:
    """Return the sets of classes that share one with the most common set; the others spell the classes otherwise."""
    sets = [frozenset(normalise(text).casefold() for text in each) for each in kept]
    most = max(sets, key=lambda each: (sets.count(each), -sets.index(each)))
    known, chosen = set(most), [each for each, folded in zip(kept, sets, strict=True) if folded & most]
    for _ in sets:
        known |= set().union(*(each for each in sets if each & known))
    chosen = [each for each, folded in zip(kept, sets, strict=True) if folded & known]
    strange = [site for site, folded in zip(sites, sets, strict=True) if folded and not folded & known]
    if strange:
        draft.comments.setdefault(name, []).append(
            f"the classes at {join_names(strange)} are none of these: add them as spellings"
        )
    return chosen


def _category_lines(sites: Sequence[Counter[str]]) -> list[str]:
    """Return the categories of a column, with texts that differ in case alone as spellings of one."""
    together: Counter[str] = sum(sites, Counter())
    alike: dict[str, list[str]] = {}
    for text in sorted(together, key=lambda each: (-together[each], each)):
        alike.setdefault(text.casefold(), []).append(text)
    names = sort_classes([texts[0] for texts in alike.values()])
    of_numbers = all(re.fullmatch("[0-9]+", name) for name in names) and bool(names)
    written = ", ".join(names if of_numbers and names == [str(int(each)) for each in names] else map(quote, names))
    lines = [f'type = "{"integer" if of_numbers else "string"}"', f"categories = [{written}]"]
    more = {texts[0]: texts[1:] for texts in alike.values() if texts[1:]}
    if more:
        spelled = (f"{_key(name)} = [{', '.join(map(quote, texts))}]" for name, texts in sorted(more.items()))
        lines.append(f"spellings = {{{', '.join(spelled)}}}")
    return lines


# Remarks --------------------------------------------------------------------------------------------------------------


def _remark(draft: Draft, schema: Schema, sites: Mapping[str, Table]) -> str:
    """Add comments on suspicious columns; return the line on missing values."""
    lacking = 0
    for name, about in schema.fields.items():
        cells = dict(columns_of(name, schema, sites))
        lacking += sum(int(each.is_missing.sum()) for each in cells.values())
        values = {site: each.values for site, each in cells.items()}
        for site, remark in find_remarks(name, about, values):
            draft.comments.setdefault(name, []).append(f"{site}: {remark}" if site else remark)
    if not lacking:
        return "error"
    have = "1 cell has" if lacking == 1 else f"{lacking} cells have"
    return f'error"  # {have} no value: "drop" leaves such rows out, "fill" takes the mean or no category'


def columns_of(name: str, schema: Schema, sites: Mapping[str, Table]) -> Iterator[tuple[str, Cells]]:
    """Yield a column as each site has it that has one."""
    for site, table in sites.items():
        if (values := table.find(table.file.called(name))) is not None:
            yield site, read_column(table, values, name, schema)


def combine_moments(moments: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a common center and scale of numbers, from each site's mean and deviation; the scale of constants is 0.

    They are medians over sites, of the means and of the squared distances from their median.
    """
    known = np.array(moments, np.float64).reshape(-1, 2)
    if not len(known):
        return 0.0, 0.0
    center = np.median(known[:, 0])
    apart = np.stack([known[:, 1], known[:, 0] - center])
    unit = unit_of(np.abs(apart).max())
    return float(center), float(unit * np.sqrt(np.median(((apart / unit) ** 2).sum(axis=0))))


# TOML -----------------------------------------------------------------------------------------------------------------


def _lines(draft: Draft, target: str, client: str, missing: str, tables: Mapping[str, Table]) -> Iterator[str]:
    yield f"target = {quote(normalise(target))}"
    if client:
        yield f"client = {quote(client)}"
    if draft.ignored:
        yield "ignore = ["
        for name, reason in draft.ignored.items():
            yield f"    {quote(name)},  # {_printable(reason)}"
        yield "]"
    yield f'missing = "{missing}"' if "#" not in missing else f'missing = "{missing}'
    for name, lines in draft.fields.items():
        yield ""
        for comment in draft.comments.get(name, ()):
            yield f"# {_printable(comment)}"
        yield f"[fields.{_key(name)}]"
        yield from lines
    written = {table.source.path.name: (table.file.encoding, table.decimal) for table in tables.values()}
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

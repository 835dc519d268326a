"""Table 1 of sites whose data never meet: what each site lets leave of its rows, by a schema.

A site's table is its letter by the schema's fields, of all rows and of each class of the target. It
follows the law of profiles.py, and that of releases.py on what has left before. The tables of all
sites become one, as in table_one.py.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.text import text_if, three_digits

from .comparison import Profiles, compare
from .encoding import EncodedFile, is_missing
from .findings import Finding
from .letters import Letter, decode_letter
from .profiles import PROBABILITIES, Cells, ColumnProfile, measure_quantiles, profile
from .releases import ALL
from .schema import Field, Schema
from .sides import settle

# The places of the quartiles among the quantiles.
LOW, MIDDLE, HIGH = (int(np.flatnonzero(p == PROBABILITIES)[0]) for p in (0.25, 0.5, 0.75))


@dataclass(frozen=True)
class SiteTable:
    """A site's table: the digest of the schema's text, and a letter of all rows and each class."""

    schema: str
    letters: Mapping[str, Letter]

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> "SiteTable":
        """Return the table in JSON; raise FairbloomError if a device does not make it so."""
        try:
            given = json.loads(content)
            letters = {
                str(name): decode_letter(json.dumps(each).encode())
                for name, each in given["letters"].items()
            }
            return cls(str(given["schema"]), {ALL: letters.pop(ALL), **letters})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FairbloomError("it is no table as a device makes it") from error


def describe_rows(
    file: EncodedFile, rows: NDArray[np.intp], letter: Letter, *, with_numbers: bool
) -> dict[str, Letter]:
    """Return the letters of all of these rows, one of each unit, and of each class.

    `letter` has the site's name, date, floor and unit. Without numbers there are no quartiles. A
    class has three quantiles, if it has at least four times the floor and two values.
    """
    schema = file.schema
    classes = name_classes(file, rows)
    groups = {ALL: rows}
    for name in schema.predicted.categories:
        groups[name] = rows[classes == name]
    letters = dict[str, Letter]()
    listed = set[str]()
    for group, own in groups.items():
        cells = {
            each: Cells.of(schema.fields[each], file.columns[each][own]) for each in file.found
        }
        columns = profile(cells, letter.floor)
        if group == ALL:
            listed = {each for each, column in columns.items() if not column.quantiles}
        for each, column in columns.items():
            quantiles = column.quantiles
            if group != ALL:
                quantiles = _quartiles_of(cells[each].known, letter.floor)
            if each in listed or not with_numbers:
                quantiles = ()
            # a class lists numbers only where all rows do
            values = column.values if each in listed else {}
            columns[each] = replace(
                column, found=(), patterns={}, others=0, values=values, quantiles=quantiles
            )
        count = len(own) // letter.floor * letter.floor
        letters[group] = replace(letter, rows=count, columns=columns)
    return letters


def _quartiles_of(numbers: NDArray[np.float64], floor: int) -> tuple[float | None, ...]:
    """Return the quantiles of a class: the quartiles, if it has enough values."""
    if len(numbers) < 4 * floor + 2:
        return ()
    given = measure_quantiles(numbers, floor)
    quartiles: list[float | None] = [None] * len(given)
    for place in (LOW, MIDDLE, HIGH):
        quartiles[place] = given[place]
    return tuple(quartiles)


def name_classes(file: EncodedFile, rows: NDArray[np.intp]) -> NDArray[np.str_]:
    """Return the class of each of these rows, "" for one without, or of a quantity."""
    names = np.array([*file.schema.predicted.categories, ""])
    if len(names) == 1:
        return np.full(len(rows), "")
    return names[np.maximum(file.columns[file.schema.target][rows], -1)]


def find_lone(
    file: EncodedFile, rows: NDArray[np.intp], classes: NDArray[np.str_], floor: int
) -> Iterator[str]:
    """Yield the columns of numbers of which a few, fewer than the floor, are in no shown class.

    These rows have no class, or one of fewer units than the floor: all rows less the other classes
    would show them.
    """
    sizes = Counter(classes.tolist())
    lone = np.array([name == "" or sizes[name] < floor for name in classes.tolist()], bool)
    for name in file.found:
        if not file.schema.fields[name].categories:
            given = ~is_missing(file.columns[name][rows])
            if 0 < (given & lone).sum() < floor:
                yield name


def keep_fields(
    letters: Mapping[str, Letter], every: Collection[str], by_class: Collection[str]
) -> dict[str, Letter]:
    """Return the letters with these columns only, of all rows and of classes."""
    kept = dict[str, Letter]()
    for name, letter in letters.items():
        allowed = every if name == ALL else by_class
        columns = {each: column for each, column in letter.columns.items() if each in allowed}
        if columns or name == ALL:
            kept[name] = replace(letter, columns=columns)
    return kept


# All sites ----------------------------------------------------------------------------------------


def join_tables(
    schema: Schema, tables: Mapping[str, SiteTable], *, by_class: bool
) -> Iterator[Mapping[str, str]]:
    """Yield the rows of Table 1, with a column for each site, or for each class at each site."""
    heads: dict[str, Letter] = {}
    for site, table in tables.items():
        letters = table.letters if by_class else {ALL: table.letters[ALL]}
        for name, letter in letters.items():
            heads[f"{site}, {name}" if name else site] = letter
    yield {"field": "", "value": "n", **{head: f"{each.rows:,}" for head, each in heads.items()}}
    for field, about in schema.fields.items():
        columns = {head: each.columns.get(field) for head, each in heads.items()}
        for value, cells in _rows_of(about, columns).items():
            yield {"field": field, "value": value, **cells}


def compare_tables(schema: Schema, tables: Mapping[str, SiteTable]) -> Iterator[Finding]:
    """Yield what stands out in the sites' tables of all rows, as of their profiles."""
    fields: dict[str, Profiles] = {}
    for field in schema.fields:
        columns = {site: table.letters[ALL].columns.get(field) for site, table in tables.items()}
        fields[field] = {site: each for site, each in columns.items() if each is not None}
    yield from settle(compare(fields), fields, tables.keys(), schema.fields)


def _rows_of(
    about: Field, columns: Mapping[str, ColumnProfile | None]
) -> dict[str, dict[str, str]]:
    """Return the rows of a field, by what they count: a cell by head."""
    there = {head: each for head, each in columns.items() if each is not None}
    absent = {head: "absent" for head, each in columns.items() if each is None}
    rows = {
        "missing": {head: f"{sum(each.missing.values()):,}" for head, each in there.items()}
        | absent
    }
    values = about.categories or [*dict.fromkeys(v for each in there.values() for v in each.values)]
    for value in values:
        rows[f"{value}, n (%)"] = {
            head: _share(each, value) for head, each in there.items() if not each.quantiles
        }
    if any(each.quantiles for each in there.values()):
        unit = text_if(about.unit, f" ({about.unit})")
        rows[f"median [25 %, 75 %]{unit}"] = {
            head: _quartiles(each.quantiles) for head, each in there.items() if each.quantiles
        }
    return rows


def _share(column: ColumnProfile, value: str) -> str:
    if value not in column.values:
        return f"< {column.floor} or hidden"
    count = column.values[value]
    return f"{count:,} ({100 * count / max(column.present, 1):.0f})"


def _quartiles(quantiles: Sequence[float | None]) -> str:
    low, middle, high = (
        "–" if each is None else three_digits(each)
        for each in (quantiles[LOW], quantiles[MIDDLE], quantiles[HIGH])
    )
    return f"{middle} [{low}, {high}]"

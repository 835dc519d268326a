"""Table 1 of sites whose data never meet: what each site lets leave of its rows, by a schema.

A site's table is its letter by the schema's fields, of all rows and of each class of the target. It
follows the law of profiles.py, and in no row or column of counts exactly one cell is hidden: the
others would show it. The tables of all sites become one, as in table_one.py.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np

from fairbloom.errors import FairbloomError
from fairbloom.text import text_if, three_digits

from .encoding import EncodedFile
from .letters import Letter, decode_letter
from .profiles import PROBABILITIES, Cells, ColumnProfile, profile
from .schema import Field, Schema

# The key of all rows; the other keys are classes.
ALL = ""

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


def describe_rows(file: EncodedFile, letter: Letter, *, with_numbers: bool) -> Mapping[str, Letter]:
    """Return the letters of all rows of a file, or the first one of each unit, and of each class.

    `letter` has the site's name, date, floor and unit. Without numbers there are no quartiles.
    """
    rows = np.arange(len(file))
    if file.units is not None:
        rows = np.unique(file.units, return_index=True)[1]
    schema = file.schema
    classes = {
        name: rows[file.columns[schema.target][rows] == place]
        for place, name in enumerate(schema.predicted.categories)
    }
    letters = dict[str, Letter]()
    for name, own in {ALL: rows, **classes}.items():
        cells = {
            each: Cells.of(schema.fields[each], file.columns[each][own]) for each in file.found
        }
        columns = profile(cells, letter.floor)
        for each, column in columns.items():
            quantiles = column.quantiles if with_numbers else ()
            columns[each] = replace(column, found=(), patterns={}, others=0, quantiles=quantiles)
        letters[name] = replace(
            letter, rows=len(own) // letter.floor * letter.floor, columns=columns
        )
    for each in file.found:
        if categories := schema.fields[each].categories:
            counts = [letters[name].columns[each].values for name in letters]
            hide_more(cast(list[dict[str, int]], counts), categories)
    return letters


def hide_more(counts: Sequence[dict[str, int]], categories: Sequence[str]) -> None:
    """Hide the smallest other count wherever exactly one cell of a row or column is hidden."""
    by_row = [[(row, category) for category in categories] for row in counts]
    by_column = [[(row, category) for row in counts] for category in categories]
    is_done = False
    while not is_done:
        is_done = True
        for line in (*by_row, *by_column):
            shown = [(row[category], row, category) for row, category in line if category in row]
            if shown and len(shown) == len(line) - 1:
                _, row, category = min(shown, key=lambda cell: cell[0])
                del row[category]
                is_done = False


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

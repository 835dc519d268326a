"""A file's columns as they are read then: under the names, units and words of the schema.

What a device's owner says of its files, and the schema that is accepted there, mend them: a column
has another name, its numbers a factor and an offset, its cells other words or markers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .cells import MISSING, FileColumn, canonical, format_number, parse_number
from .reading import ReadTable
from .schema import Decimal, Field, FileField, Schema, fold, normalise


@dataclass(frozen=True, eq=False)
class Mended:
    """A column of a file as it is read.

    Attributes
    ----------
    name
        Its name in the schema, or in what the owner says of it; of another column, the file's.
    source
        Its name in the file, folded.
    column
        Its cells.
    is_converted
        Whether its numbers have a factor or an offset.
    """

    name: str
    source: str
    column: FileColumn
    is_converted: bool = False


def mend(table: ReadTable, part: Mapping[str, FileColumn], schema: Schema) -> dict[str, Mended]:
    """Return the columns of a file as a schema reads them, by folded name.

    `part` has the columns as the file has them, by folded name. A schema without fields knows only
    what the owner says. A column that the file's description ignores is left out, and so is one
    with the name of a field that is read from another column.
    """
    mended: dict[str, Mended] = {}
    sources: set[str] = set()
    for name in dict.fromkeys([*schema.fields, *table.file.fields]):
        own = [fold(each) for each in table.own_names(name)]
        there = [each for each in own if each in part and each not in sources]
        if there:
            sources.add(there[0])
            mended[fold(name)] = _mend_column(table, part[there[0]], there[0], name, schema)
    left_out = {*map(fold, table.file.ignore), *sources, *mended}
    for source, column in part.items():
        if source not in left_out:
            mended[source] = Mended(table.by_name[source], source, column)
    return mended


def _mend_column(
    table: ReadTable, column: FileColumn, source: str, name: str, schema: Schema
) -> Mended:
    about = table.file.field(name)
    known = schema.fields.get(name)
    field = (known or _field_alone(about)).of_client(about)
    markers = {normalise(text).casefold() for text in field.missingValues}
    markers |= MISSING if known is None else {*map(str.casefold, schema.missingValues)}
    units = {field.unit, about.unit, *field.flags} - {""}
    if units or markers != MISSING:
        column = FileColumn.of(table.find(source), table.file, units, markers)
    is_converted = (about.factor, about.offset) != (1.0, 0.0) and not field.categories
    if is_converted:
        column = _convert(column, about, table.decimal)
    elif field.categories:
        column = _name_categories(column, field, markers, table.decimal)
    return Mended(name, source, column, is_converted)


def _field_alone(about: FileField) -> Field:
    """Return the field of a column of which only the owner says something: without a schema."""
    return Field(type="string", categories=(*about.spellings,))


def _convert(column: FileColumn, about: FileField, decimal: Decimal) -> FileColumn:
    """Return a column with its numbers in the schema's unit, as texts, too."""
    numbers = column.numbers * about.factor + about.offset
    texts = [*column.texts]
    if texts:
        is_number = ~column.is_wrong & ~column.is_missing
        for place in np.flatnonzero(is_number).tolist():
            texts[place] = format_number(float(numbers[place]), decimal)
    return replace(column, texts=texts, numbers=numbers)


def _name_categories(
    column: FileColumn, field: Field, markers: set[str], decimal: Decimal
) -> FileColumn:
    """Return a column with the name of each cell's category; other cells stay as they are."""
    texts = [*column.texts]
    numbers = column.numbers.copy()
    is_wrong = column.is_wrong.copy()
    is_missing = column.is_missing.copy()
    for entry, cell in enumerate(column.texts):
        text = normalise(cell)
        place = field.place(text, markers)
        if place is None:
            place = field.place(canonical(text, decimal), markers)
        if place is None:
            continue
        is_missing[entry] = place < 0
        if place >= 0:
            texts[entry] = field.categories[place]
            number = parse_number(texts[entry])
            numbers[entry] = np.nan if number is None else number
            is_wrong[entry] = number is None
    return FileColumn(texts, column.codes, numbers, is_wrong, is_missing)

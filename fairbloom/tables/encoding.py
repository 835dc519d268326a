"""Encode a file by the schema, in whole columns, and find its faults."""

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean
from fairbloom.text import join_first, plural, text_if

from .cells import (
    canonical,
    different_cells,
    explain_number,
    fold_value,
    parse_numbers,
)
from .missing_words import may_mean_missing
from .reading import CellError, ReadTable, Remark, Values, read
from .reasons import MAX_FAULTS, DataError, raise_faults
from .schema import (
    MAX_TEXT,
    Decimal,
    Field,
    Schema,
    client_of,
    fold,
    fold_look,
    normalise,
    say_apart,
)
from .scripts import show_script
from .toml import write_table

# The index of a cell that is in no category; a missing value has -1. In a column of numbers, a cell
# that is not a number is inf.
UNKNOWN = -2

# Columns that a file lacks, each of which is a fault; more of them are one, if it has others.
MAX_LACKING = 3

# The indices of rows without a unit start here, beyond those of units.
NO_UNIT = 2**32

# A column encoded by the schema: numbers in float64, NaN if missing, or indices of categories, -1
# if missing.
ColumnValues = NDArray[Any]

# The rows of each client in a file, and the number of rows of each spelling of a client's name.
ClientRows = Mapping[str, NDArray[np.intp]]
Spellings = Mapping[str, Counter[str]]


def is_missing(values: ColumnValues) -> NDArray[np.bool_]:
    """Return which rows of a column have no value."""
    return np.isnan(values) if values.dtype.kind == "f" else values == -1


def is_unknown(values: ColumnValues) -> NDArray[np.bool_]:
    """Return which rows of a column have a cell that is in no category, or not a number."""
    return np.isinf(values) if values.dtype.kind == "f" else values == UNKNOWN


def read_columns(
    table: ReadTable, schema: Schema, names: Collection[str] | None = None
) -> tuple[dict[str, ColumnValues], list[DataError]]:
    """Return the columns of a schema, or only `names`, and their faults.

    Faults of whole columns come before faults of cells.
    """
    schema = schema.of_client(table.file.fields)
    unread = dict(table.by_name)
    columns: dict[str, ColumnValues] = {}
    of_columns: list[DataError] = []
    of_cells: list[DataError] = []
    lacking: list[str] = []
    this = f"{client_of(table.file.key)}/{table.path.name}"
    for name in schema.fields if names is None else names:
        called = [each for each in table.own_names(name) if unread.pop(fold(each), "")]
        if len(called) > 1:
            of_columns.append(
                CellError(
                    table,
                    name,
                    f"has the columns {join_first(called)}, each of which is {name!r} here",
                    f"remove one, or put it in ignore and say fields.{name}.name of the other under"
                    f" [files.{this!r}] in the schema",
                    "two-names",
                )
            )
        if called:
            columns[name] = read_column(table, name, schema, of_cells)
            continue
        lacking.append(name)
        columns[name] = _no_values(schema.fields[name], len(table))
        if schema.missing_of(name) != "fill":
            of_columns.append(_lacks(table, name, unread.values()))
    if len(lacking) > MAX_LACKING and unread and of_columns:
        of_columns = [
            CellError(
                table,
                lacking[0],
                f"has no column {join_first(lacking, MAX_LACKING)}",
                f"its own are {join_first([*unread.values()])}: say each one's fields.NAME ="
                f" {{name = OWN}} under [files.{table.file.key!r}] in the schema; a draft proposes"
                " those that look alike",
                "no-column",
            ),
            *(each for each in of_columns if each.why != "no-column"),
        ]
    if names is None and schema.unit and table.find(table.column_name(schema.unit)) is None:
        of_columns.append(
            CellError(
                table,
                schema.unit,
                f"has no column {schema.unit!r}, the schema's unit",
                "add it",
                "no-column",
            )
        )
    own_names = chain(*map(table.file.names_of, (*schema.fields, schema.unit)))
    ignored = (*schema.ignore, *table.file.ignore)
    known = {fold(name) for name in (*ignored, *schema.fields, schema.client, *own_names)}
    if names is not None:  # new data may have the target, by any client's name of it
        for file in schema.files.values():
            known.update(map(fold, file.names_of(schema.target)))
    strange = [name for key, name in unread.items() if key not in known]
    of_columns += _explain_strange(table, strange, lacking, schema)
    return columns, [*of_columns, *of_cells]


def _lacks(table: ReadTable, name: str, unread: Collection[str]) -> CellError:
    """Return the fault that a table lacks a column; `unread` are its own that no field has."""
    own = table.column_name(name)
    problem = f"has no column {own!r}"
    named = f"name it by fields.{name}.name under [files.{table.file.key!r}] in the schema"
    if own != name:
        problem += f", as the schema's files call {name!r} here"
        named = "correct its name there"
    remedy = f'add it, {named}, or missing = "fill" in fields.{name}'
    near = [each for each in unread if not say_apart(own, each)]
    return CellError(table, name, problem, did_you_mean(own, near) + remedy, "no-column")


def _explain_strange(
    table: ReadTable, strange: Sequence[str], lacking: Sequence[str], schema: Schema
) -> Iterator[CellError]:
    """Yield the fault of each column that the schema does not name, which may be a lacking one."""
    own = lacking[0] if len(lacking) == 1 else "NAME"
    this = f"{client_of(table.file.key)}/{table.path.name}"
    for name in strange[:MAX_FAULTS]:
        near = [each for each in schema.fields if not say_apart(name, each)]
        remedy = (
            f"{did_you_mean(name, near)}add it to fields, or to ignore, of all clients or"
            f" under [files.{table.file.key!r}]"
        )
        if lacking:
            remedy = (
                f"if it is {join_first(lacking, 3)}, say fields.{own}.name ="
                f" {[*table.file.names_of(own), name]} under [files.{table.file.key!r}], or its"
                f" name, unit, factor and offset under [files.{this!r}]; else {remedy}"
            )
        problem = f"has a column {name!r}, which the schema does not name"
        yield CellError(table, name, problem, remedy, "strange-columns", columns=len(strange))


def _no_values(field: Field, rows: int) -> ColumnValues:
    return np.full(rows, -1, np.int32) if field.categories else np.full(rows, np.nan)


def read_column(
    table: ReadTable, name: str, schema: Schema, wrong: list[DataError]
) -> ColumnValues:
    """Return a column of a file by the schema, and append its faults to `wrong`."""
    field = schema.fields[name]
    if (values := table.find(table.column_name(name))) is None:
        wrong.append(
            CellError(
                table,
                name,
                f"has a column {name!r} of lists, bytes or other values that are neither numbers"
                " nor texts",
                "put it in ignore, or write numbers or texts",
                "strange-column",
            )
        )
        return _no_values(field, len(table))
    read_values = _read_categories if field.categories else _read_numbers
    column = read_values(table, values, name, schema, wrong)
    rows = np.flatnonzero(is_missing(column))
    if schema.missing_of(name) == "error" and len(rows):
        wrong.append(
            CellError(
                table,
                name,
                "no value, the first of "
                + plural(len(rows), "1 such cell", f"{len(rows)} such cells"),
                'say missing = "drop" in the schema (without one: --set csv.missing=drop), which'
                ' leaves such rows out, or "fill": the mean, or no category',
                "missing",
                rows,
                cells=len(rows),
            )
        )
    return column


def _markers_of(schema: Schema, name: str) -> set[str]:
    """Return the markers of a missing value in a column, in lower case."""
    own = schema.fields[name].missingValues if name in schema.fields else ()
    return {normalise(text).casefold() for text in (*schema.missingValues, *own)}


# Categories ---------------------------------------------------------------------------------------


def _read_categories(
    table: ReadTable,
    values: Values,
    name: str,
    schema: Schema,
    wrong: list[DataError],
) -> ColumnValues:
    field = schema.fields[name]
    missing = _markers_of(schema, name)
    cells, codes = different_cells(values)
    places = []
    for cell in cells:
        text = normalise(cell)
        place = field.place(text, missing)
        if place is None:
            place = field.place(canonical(text, table.decimal), missing)
        places.append(UNKNOWN if place is None else place)
    found = np.array(places, np.int32)[codes]
    for code in np.unique(codes[found == UNKNOWN])[:MAX_FAULTS]:
        explained = explain_cell(
            cells[code], name, field, name == schema.target, table.decimal, table.file.key
        )
        wrong.append(_count_fault(table, name, explained, "no-category", codes == code))
    return found


def explain_cell(
    cell: str, name: str, field: Field, is_target: bool, decimal: Decimal, file: str
) -> tuple[str, str]:
    """Return the problem and the remedy of a cell that is in no category, or not a number.

    Numbers of the `file` have this `decimal` mark.
    """
    if not field.categories:
        return explain_number(cell, decimal, name, field.unit, file)
    text = normalise(cell)
    if len(text) > MAX_TEXT:
        return f"a text of {len(text):,} characters", "correct it, or put the column in ignore"
    looks = [each for each in field.categories if fold_look(each) == fold_look(text)]
    if len(looks) == 1:
        return (
            f"which looks like {show_script(looks[0])}, in letters of another script",
            f"write it in the same letters, or say fields.{name}.spellings ="
            f" {write_table({looks[0]: [text]})}",
        )
    known = join_first(field.categories)
    # In the target even a near spelling may be the opposite, as "unwell" is of "well".
    hint = text_if(not is_target, did_you_mean(text, field.categories))
    new = f"add it to categories of fields.{name} if it is a new one"
    may_be_missing = is_target or may_mean_missing(text)
    marker = f", or, if it means a missing value, fields.{name}.missingValues = [{text!r}]"
    return (
        f"not one of the categories {known}",
        f"{hint}{'correct it' if hint or is_target else new}, or say which of {known} it means:"
        f" fields.{name}.spellings = {{CATEGORY = [{text!r}]}}{text_if(may_be_missing, marker)}",
    )


def _count_fault(
    table: ReadTable, name: str, explained: tuple[str, str], why: str, rows: NDArray[np.bool_]
) -> CellError:
    """Return the fault of these rows: that of the first row, and the number of further rows.

    `explained` has the problem and the remedy.
    """
    problem, remedy = explained
    if more := int(rows.sum()) - 1:
        problem += plural(more, ", as 1 more row does", f", as {more:,} more rows do")
    return CellError(table, name, problem, remedy, why, np.flatnonzero(rows))


# Numbers ------------------------------------------------------------------------------------------


def _read_numbers(
    table: ReadTable,
    values: Values,
    name: str,
    schema: Schema,
    wrong: list[DataError],
) -> ColumnValues:
    field = schema.fields[name]
    missing = _markers_of(schema, name)
    about = table.file.field(name)
    numbers, is_wrong, gone = parse_numbers(
        values, table.file, {field.unit, about.unit, *field.flags} - {""}, missing
    )
    if is_wrong.any():
        rows = np.flatnonzero(is_wrong)
        cells, codes = different_cells(values.take(rows))
        for code, cell in enumerate(cells[:-1][:MAX_FAULTS]):
            explained = explain_number(cell, table.decimal, name, field.unit, table.file.key)
            having = np.isin(np.arange(len(table)), rows[codes == code])
            wrong.append(_count_fault(table, name, explained, "no-number", having))
    numbers *= about.factor
    if about.offset:  # which would make 0 of -0
        numbers += about.offset
    numbers[gone] = np.nan
    numbers[is_wrong] = np.inf
    limits = field.constraints
    are_numbers = ~gone & ~is_wrong
    checks = [
        (numbers < limits.minimum, f"below the minimum, {limits.minimum:g}"),
        (numbers > limits.maximum, f"above the maximum, {limits.maximum:g}"),
    ]
    if limits.enum:
        checks.append(
            (
                ~np.isin(numbers, limits.enum),
                "and allowed are " + join_first([f"{number:g}" for number in limits.enum]),
            )
        )
    if field.type == "integer":
        checks.append((numbers != np.round(numbers), "which is not a whole number"))
    remedy = (
        "correct it, or the schema; a code for a missing value belongs in"
        f" fields.{name}.missingValues"
    )
    for is_outside, problem in checks:
        outside = is_outside & are_numbers
        if outside.any():
            wrong.append(_count_fault(table, name, (problem, remedy), "out-of-range", outside))
    return numbers


# Clients ------------------------------------------------------------------------------------------


def rows_of_clients(
    values: Values, decimal: Decimal, missing: Collection[str]
) -> tuple[ClientRows, Spellings]:
    """Return the rows of each client that a column names, and the spellings of its name.

    Numbers among the names have a decimal mark. The rows are sorted by name; "" has those without
    one, or with a marker in `missing`. A client's name is its most frequent spelling; spellings are
    listed if it has several.
    """
    cells, codes = different_cells(values)
    cells = [text_if(normalise(cell).casefold() not in missing, cell) for cell in cells]
    folded = [fold_value(cell, decimal) for cell in cells]
    spelled: dict[str, Counter[str]] = {}
    counts_of_cells = np.bincount(codes, minlength=len(cells)).tolist()
    for key, cell, count in zip(folded, cells, counts_of_cells, strict=True):
        spelled.setdefault(key, Counter())[normalise(cell)] += count
    names = {
        key: min(counts, key=lambda name: (-counts[name], name)) for key, counts in spelled.items()
    }
    order = {key: place for place, key in enumerate(sorted(names, key=lambda key: names[key]))}
    places = np.array([order[key] for key in folded])[codes]
    ends = np.cumsum(np.bincount(places, minlength=len(order)))
    rows = np.split(np.argsort(places, kind="stable"), ends[:-1])
    return (
        {names[key]: each for key, each in zip(order, rows, strict=True) if len(each)},
        {names[key]: spelled[key] for key in order if len(spelled[key]) > 1},
    )


# Files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EncodedFile:
    """A file that is encoded once for all of its clients, or the files of one client.

    Attributes
    ----------
    path
        The file, or the folder of several.
    paths
        The files, one after the other.
    client
        The client that they are read for.
    schema
        The schema that they were encoded by.
    columns
        The schema's columns by name, with the rows in the files' order.
    found
        The names of the columns that a file has; the others are without values.
    usable
        Which rows are used: rows with a missing value may be left out.
    faults
        The faults of all rows.
    rows
        The rows of each client that the schema's column names, sorted by name; None if the schema
        has no such column.
    spellings
        The number of rows of each spelling of a client's name, of the clients with several.
    units
        The unit of each row, as an index; None if the schema names no column of units.
    unit_names
        The name of each unit.
    remarks
        Pairs of a column's name, or None for the file, and a remark on how a file is written.
    """

    path: Path
    paths: Sequence[Path]
    client: str
    schema: Schema
    columns: Mapping[str, ColumnValues]
    found: Sequence[str]
    usable: NDArray[np.bool_]
    faults: Sequence[DataError]
    rows: ClientRows | None
    spellings: Spellings
    units: NDArray[np.int64] | None
    unit_names: Sequence[str]
    remarks: Sequence[Remark]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.usable)

    @cached_property
    def has_unknown(self) -> NDArray[np.bool_]:
        """Which rows have a cell that is in no category, or not a number."""
        return reduce(np.logical_or, map(is_unknown, self.columns.values()))

    @cached_property
    def faulty(self) -> NDArray[np.bool_]:
        """Which rows have a fault; a fault of a whole column is one of all rows."""
        # Only a column's first faults are listed; the values show its other faulty cells.
        faulty = self.has_unknown.copy()
        for fault in self.faults:
            if isinstance(fault, CellError) and fault.rows is not None:
                faulty[fault.rows] = True
            else:
                faulty[:] = True
        return faulty

    def raise_faults(self, rows: NDArray[np.intp]) -> None:
        """Raise DataError with all faults of some rows, if they have any."""
        if self.faulty[rows].any():
            read_again = [read_columns(table.take(rows), self.schema) for table in self.read()]
            raise_faults([fault for _, faults in read_again for fault in faults])

    def name_units(self) -> Iterator[ColumnValues]:
        """Yield a number for the name of each row's unit, if rows belong to units."""
        if self.units is not None:
            digests = [zlib.crc32(name.encode()) for name in self.unit_names]
            numbers = np.array([*digests, 0])
            is_named = self.units < NO_UNIT
            yield np.where(is_named, numbers[np.where(is_named, self.units, -1)], self.units)

    def read(self) -> Iterator[ReadTable]:
        """Read the files again."""
        return _read_files(self.paths, self.client, self.schema)


class ClientTable(NamedTuple):
    """The rows of one client in a file."""

    file: EncodedFile
    rows: NDArray[np.intp]

    @property
    def values(self) -> Mapping[str, ColumnValues]:
        """The client's values in each column that the file has."""
        return {name: self.file.columns[name][self.rows] for name in self.file.found}


def encode_files(paths: Sequence[Path], client: str, schema: Schema) -> EncodedFile:
    """Return a client's files encoded by a schema; encode them again only after a change."""
    try:
        changes = tuple((each.st_ctime_ns, each.st_size) for each in map(Path.stat, paths))
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be read: {error.strerror}", "unreadable"
        ) from error
    return _encode_files(tuple(paths), changes, client, schema)


def _read_files(paths: Sequence[Path], client: str, schema: Schema) -> Iterator[ReadTable]:
    start = 0
    for path in paths:
        table = replace(read(path, schema.file(path.name, client)), start=start)
        start += len(table)
        yield table


# The seeds of a study share the files that they split.
@lru_cache(maxsize=128)
def _encode_files(
    paths: Sequence[Path], changes: Sequence[tuple[int, int]], client: str, schema: Schema
) -> EncodedFile:
    tables = [*_read_files(paths, client, schema)]
    rows, spellings = _rows_of_clients(tables[0], schema) if schema.client else (None, {})
    parts = [read_columns(table, schema) for table in tables]
    columns = {name: np.concatenate([part[name] for part, _ in parts]) for name in schema.fields}
    usable = np.ones(len(columns[schema.target]), np.bool_)
    # Not for columns that only make groups: a row without a group is used.
    for name in (schema.target, *schema.inputs):
        if schema.missing_of(name) == "drop":
            usable &= ~is_missing(columns[name])
    units, unit_names = _read_units(tables, schema)
    return EncodedFile(
        path=paths[0] if len(paths) == 1 else paths[0].parent,
        paths=paths,
        client=client,
        schema=schema,
        columns=columns,
        found=[name for name in columns if any(table.own_names(name) for table in tables)],
        usable=usable,
        faults=[fault for _, faults in parts for fault in faults],
        rows=rows,
        spellings=spellings,
        units=units,
        unit_names=unit_names,
        remarks=[remark for table in tables for remark in table.remarks],
    )


def _read_units(
    tables: Sequence[ReadTable], schema: Schema
) -> tuple[NDArray[np.int64] | None, Sequence[str]]:
    """Return the unit of each row, as an index, and their names.

    A row without one has its own, from NO_UNIT.
    """
    name = schema.unit
    found: list[NDArray[np.int64]] = []
    places: dict[str, int] = {}
    for table in tables:
        values = table.find(table.column_name(name)) if name else None
        if values is None:  # which is a fault, if the schema names one
            return None, ()
        missing = _markers_of(schema, name).union(
            normalise(text).casefold() for text in table.file.field(name).missingValues
        )
        rows, _ = rows_of_clients(values, table.decimal, missing)
        units = np.arange(NO_UNIT, NO_UNIT + len(table)) + table.start
        for unit in sorted(filter(None, rows), key=lambda unit: int(rows[unit][0])):
            units[rows[unit]] = places.setdefault(fold_value(unit, table.decimal), len(places))
        found.append(units)
    return np.concatenate(found), [*places]


def _rows_of_clients(table: ReadTable, schema: Schema) -> tuple[ClientRows, Spellings]:
    """Return the rows of each client that a column names; raise DataError for rows without one."""
    name = schema.client
    if (values := table.find(name)) is None:
        raise CellError(table, name, f"has no column {name!r} of clients", "add it", "no-column")
    rows, spellings = rows_of_clients(values, table.decimal, _markers_of(schema, name))
    if (nameless := rows.get("")) is not None:
        raise CellError(
            table,
            name,
            f"names no client, as {len(nameless)} rows do",
            "name the client of each row; if the cell is a client's name, say missingValues without"
            " it in the schema",
            "nameless-rows",
            nameless,
            rows=len(nameless),
        )
    return rows, spellings


# Means and deviations -----------------------------------------------------------------------------


# A column is constant if its deviation is below this share of its largest magnitude: 0.1 + 0.2
# differs from 0.3 by 2e-16.
CONSTANT = 1e-12

# Mean and standard deviation.
Moments = tuple[float, float]


def measure_moments(numbers: NDArray[np.float64]) -> Moments | None:
    """Return mean and deviation of the numbers that are not missing; None if all are.

    The deviation of numbers that differ only by rounding is exactly 0.
    """
    if not len(numbers):
        return None
    low = numbers.min()
    if np.isnan(low):
        return measure_moments(numbers[~np.isnan(numbers)])
    high = numbers.max()
    if low == high:  # numbers.std() would be a rounding error, not 0
        return float(numbers[0]), 0.0
    deviation = float(numbers.std())
    is_constant = deviation < CONSTANT * max(abs(low), abs(high))
    return float(numbers.mean()), 0.0 if is_constant else deviation


def measure_columns(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mean and deviation of each row of `numbers`, shape (rows, 2), as `measure_moments`.

    NumPy sums each row as it sums an array of its own, so that the bits are the same.
    """
    low = numbers.min(axis=1)
    high = numbers.max(axis=1)
    moments = np.stack([numbers.mean(axis=1), numbers.std(axis=1)], axis=1)
    is_constant = moments[:, 1] < CONSTANT * np.maximum(np.abs(low), np.abs(high))
    for row in np.flatnonzero(np.isnan(low) | (low == high) | is_constant):
        moments[row] = measure_moments(numbers[row]) or (0.0, 0.0)
    return moments

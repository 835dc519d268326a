"""Encode the rows of one site by the schema: find their faults, and turn them into examples."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.errors import did_you_mean, find_nearest
from fairbloom.text import text_if

from ..partition import MIN_EXAMPLES, Parts, split, splits_of
from ..preprocessing import TABLE, Preprocessing, encode_columns, input_columns
from ..schema import MAX_TEXT, Field, FileField, Schema, fold, normalise, parse_schema
from ..task import Setup, Splits
from .cells import canonical, different_cells, explain_number, parse_numbers
from .read import CellError, Table, Values
from .reasons import MAX_FAULTS, DataError, raise_faults
from .targets import Target, as_targets, join_names

# The index of a cell that is in no category; a missing value has -1. In a column of numbers, a cell
# that is not a number is inf.
UNKNOWN = -2

# A column encoded by the schema: numbers in float64, NaN if missing, or indices of categories, -1
# if missing.
ColumnValues = NDArray[Any]


def encode(table: Table, schema: Schema) -> dict[str, ColumnValues]:
    """Return the columns of a table by the schema; raise DataError with all faults."""
    columns, wrong = read_columns(table, schema)
    raise_faults(wrong)
    return columns


def encode_groups(schema: Schema, columns: Mapping[str, ColumnValues]) -> Tensor | None:
    """Return each row's group indices, shape (rows, groupings); None if there are no groupings."""
    if not schema.groupings:
        return None
    places = [
        by.places(columns[by.column], schema.fields[by.column].categories)
        for by in schema.groupings
    ]
    return torch.from_numpy(np.stack(places, axis=1))


def is_missing(values: ColumnValues) -> NDArray[np.bool_]:
    """Return which rows of a column have no value."""
    return np.isnan(values) if values.dtype.kind == "f" else values == -1


def read_columns(
    table: Table, schema: Schema, names: Collection[str] | None = None
) -> tuple[dict[str, ColumnValues], list[DataError]]:
    """Return the columns of a schema, or only `names`, and their faults.

    Faults of whole columns come before faults of cells.
    """
    unread = dict(table.by_name)
    columns: dict[str, ColumnValues] = {}
    of_columns: list[DataError] = []
    of_cells: list[DataError] = []
    for name in schema.fields if names is None else names:
        if unread.pop(fold(table.file.column_name(name)), None) is not None:
            columns[name] = read_column(table, name, schema, of_cells)
            continue
        columns[name] = _no_values(schema.fields[name], len(table))
        if schema.missing_of(name) != "fill":
            own = (
                f"say what it is called by fields.{name}.name under [files.{table.path.name!r}] in"
                " the schema"
            )
            remedy = (
                f'{did_you_mean(name, unread.values())}add it, {own}, or missing = "fill" in'
                f" fields.{name}"
            )
            problem = f"has no column {name!r}"
            of_columns.append(CellError(table, name, problem, remedy, "no-column"))
    known = {fold(name) for name in (*schema.ignore, *schema.fields, schema.client)}
    strange = [name for key, name in unread.items() if key not in known]
    for name in strange[:MAX_FAULTS]:
        fault = CellError(
            table,
            name,
            f"has a column {name!r}, which the schema does not name",
            f"{did_you_mean(name, schema.fields)}add it to ignore, or to fields",
            "strange-columns",
            columns=len(strange),
        )
        of_columns.append(fault)
    return columns, [*of_columns, *of_cells]


def _no_values(field: Field, rows: int) -> ColumnValues:
    return np.full(rows, -1, np.int32) if field.categories else np.full(rows, np.nan)


def read_column(table: Table, name: str, schema: Schema, wrong: list[DataError]) -> ColumnValues:
    """Return a column of a file by the schema, and append its faults to `wrong`."""
    field = schema.fields[name]
    values = table.find(table.file.column_name(name))
    if values is None:
        fault = CellError(
            table,
            name,
            f"has a column {name!r} of lists, bytes or other values that are neither numbers nor"
            " texts",
            "put it in ignore, or write numbers or texts",
            "strange-column",
        )
        wrong.append(fault)
        return _no_values(field, len(table))
    missing = {normalise(each).casefold() for each in (*schema.missingValues, *field.missingValues)}
    read = _read_categories if field.categories else _read_numbers
    column = read(table, values, name, field, missing, wrong)
    rows = np.flatnonzero(is_missing(column))
    if schema.missing_of(name) == "error" and len(rows):
        fault = CellError(
            table,
            name,
            f"no value, the first of {len(rows)} such cells",
            'say missing = "drop" in the schema, which leaves such rows out, or "fill": the mean,'
            " or no category",
            "missing",
            int(rows[0]),
            cells=len(rows),
        )
        wrong.append(fault)
    return column


# Categories ---------------------------------------------------------------------------------------


def _read_categories(
    table: Table,
    values: Values,
    name: str,
    field: Field,
    missing: Collection[str],
    wrong: list[DataError],
) -> ColumnValues:
    cells, codes = different_cells(values)
    places = []
    for cell in cells:
        text = normalise(cell)
        place = field.places.get(text, field.places.get(canonical(text, table.decimal), UNKNOWN))
        places.append(-1 if place == UNKNOWN and text.casefold() in missing else place)
    found = np.array(places, np.int32)[codes]
    folded = {
        spelling.casefold(): field.categories[place] for spelling, place in field.places.items()
    }
    for code in np.unique(codes[found == UNKNOWN])[:MAX_FAULTS]:
        text = normalise(cells[code])
        if len(text) > MAX_TEXT:
            problem = f"a text of {len(text):,} characters"
            remedy = "correct it, or put the column in ignore"
        else:
            problem = f"none of the categories {join_names(field.categories)}"
            same = folded.get(text.casefold())
            meant = same or find_nearest(text, field.categories) or field.categories[0]
            remedy = (
                "correct it, or add it to the spellings of the category that it means, as in"
                f" fields.{name}.spellings = {{{meant!r} = [{text!r}]}}"
            )
            if same:
                remedy = f"differs from it in upper and lower case: {remedy}"
        wrong.append(_count_fault(table, name, problem, remedy, "no-category", codes == code))
    return found


def _count_fault(
    table: Table, name: str, problem: str, remedy: str, why: str, rows: NDArray[np.bool_]
) -> CellError:
    """Return the fault of these rows: that of the first row, and the number of further rows."""
    more = int(rows.sum()) - 1
    if more == 1:
        problem += ", as 1 more row does"
    elif more > 1:
        problem += f", as {more:,} more rows do"
    return CellError(table, name, problem, remedy, why, int(np.argmax(rows)))


# Numbers ------------------------------------------------------------------------------------------


def _read_numbers(
    table: Table,
    values: Values,
    name: str,
    field: Field,
    missing: Collection[str],
    wrong: list[DataError],
) -> ColumnValues:
    about = table.file.fields.get(name, FileField())
    numbers, is_wrong, gone = parse_numbers(
        values, table.file, {field.unit, about.unit} - {""}, missing
    )
    if is_wrong.any():
        rows = np.flatnonzero(is_wrong)
        cells, codes = different_cells(values.take(rows))
        for code, cell in enumerate(cells[:-1][:MAX_FAULTS]):
            problem, remedy = explain_number(cell, table.decimal, name, field.unit, table.path.name)
            having = np.isin(np.arange(len(table)), rows[codes == code])
            wrong.append(_count_fault(table, name, problem, remedy, "no-number", having))
    numbers *= about.factor
    numbers[gone] = np.nan
    numbers[is_wrong] = np.inf
    limits = field.constraints
    are_numbers = ~gone & ~is_wrong
    checks = [
        (numbers < limits.minimum, f"below the minimum, {limits.minimum:g}"),
        (numbers > limits.maximum, f"above the maximum, {limits.maximum:g}"),
    ]
    if limits.enum:
        allowed = join_names([f"{each:g}" for each in limits.enum])
        checks.append((~np.isin(numbers, limits.enum), f"and allowed are {allowed}"))
    if field.type == "integer":
        checks.append((numbers != np.round(numbers), "which is no whole number"))
    remedy = (
        "correct it, or the schema; a code for a missing value belongs in"
        f" fields.{name}.missingValues"
    )
    for is_outside, problem in checks:
        outside = is_outside & are_numbers
        if outside.any():
            wrong.append(_count_fault(table, name, problem, remedy, "out-of-range", outside))
    return numbers


# Clients ------------------------------------------------------------------------------------------


def rows_of_clients(values: Values) -> dict[str, NDArray[np.intp]]:
    """Return the rows of each client that a column names, sorted by name; "" has the others."""
    cells, codes = different_cells(values)
    names = [normalise(cell) for cell in cells]
    order = {name: place for place, name in enumerate(sorted({*names}))}
    places = np.array([order[name] for name in names])[codes]
    ends = np.cumsum(np.bincount(places, minlength=len(order)))
    rows = np.split(np.argsort(places, kind="stable"), ends[:-1])
    return {name: each for name, each in zip(order, rows, strict=True) if len(each)}


# Examples -----------------------------------------------------------------------------------------


class SiteRows:
    """The usable rows of one site, and the examples that they become."""

    def __init__(self, client: str, table: Table, setup: Setup) -> None:
        self._client = client
        self._text = setup.schema_
        self._schema = parse_schema(setup.schema_)
        columns = encode(table, self._schema)
        usable = np.ones(len(table), np.bool_)
        # Not for columns that only make groups: a row without a group is used.
        for name in (self._schema.target, *self._schema.inputs):
            if self._schema.missing_of(name) == "drop":
                usable &= ~is_missing(columns[name])
        rows = len(table)
        kept = int(usable.sum())
        if kept < MIN_EXAMPLES:
            dropped = text_if(kept < rows, f", {kept} of them without a missing value")
            raise DataError(
                f"{table.path} has {rows} row{'s' * (rows != 1)}{dropped}: at least {MIN_EXAMPLES}"
                " are needed, four fifths for training and one for testing: add rows, or leave"
                " this client out",
                "few-rows",
                rows=rows,
                kept=kept,
                fewest=MIN_EXAMPLES,
            )
        self.left_out = rows - kept
        self.values = {name: column[usable] for name, column in columns.items()}
        self.parts: Parts = split(np.arange(kept), setup, client)

    def preprocessing(self) -> Preprocessing:
        """Return this site's preprocessing: numbers are standardised by its training rows."""
        moments = {
            name: measure_moments(column[self.parts.train])
            for name, column in self.values.items()
            if not self._schema.fields[name].categories
        }
        return preprocessing_of(self._text, self._client, moments)

    def splits(self) -> Splits:
        """Return inputs, targets and groups of the examples."""
        schema = self._schema
        inputs = encode_columns(self.preprocessing().columns, self.values)
        targets = as_targets(self.values[schema.target], Target.of(schema))
        return splits_of(inputs, targets, self.parts, encode_groups(schema, self.values))

    def describe(self) -> Mapping[str, str | int]:
        """Return the site's row in the table of `fairbloom data`."""
        target = self.values[self._schema.target]
        classes = self._schema.predicted.categories
        if classes:
            counts = np.bincount(target, minlength=len(classes))
            held = join_names(
                [f"{name}: {count}" for name, count in zip(classes, counts, strict=True)]
            )
        else:
            held = f"{target.min():g} to {target.max():g}"
        return {
            "train": len(self.parts.train),
            "test": len(self.parts.test),
            "target": held,
            "rows left out": self.left_out,
        }


def preprocessing_of(
    text: str, client: str, moments: Mapping[str, "Moments | None"] | None
) -> Preprocessing:
    """Return the preprocessing of tables by a schema's text.

    `moments` are mean and deviation of the client's own columns; None if they are unknown.
    """
    schema = parse_schema(text)
    target = Target.of(schema)
    needs_moments = any(
        not field.categories and field.center is None for field in schema.inputs.values()
    )
    return Preprocessing(
        form=TABLE,
        columns=input_columns(schema, moments or {}),
        target=schema.target,
        classes=target.classes,
        target_center=target.center,
        target_scale=target.scale,
        client=client,
        per_client=needs_moments and moments is None,
        schema=text,
    )


# Mean and standard deviation.
Moments = tuple[float, float]


def measure_moments(numbers: NDArray[np.float64]) -> Moments | None:
    """Return mean and deviation of the numbers that are not missing; None if all are.

    The deviation of equal numbers is exactly 0.
    """
    if not len(numbers):
        return None
    low = numbers.min()
    if np.isnan(low):
        return measure_moments(numbers[~np.isnan(numbers)])
    if low == numbers.max():  # numbers.std() would be a rounding error, not 0
        return float(numbers[0]), 0.0
    return float(numbers.mean()), float(numbers.std())

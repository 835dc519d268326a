"""The rows of one site, by the schema: what is wrong with them, and the examples that they become."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean, find_nearest

from ..partition import MIN_EXAMPLES, Parts, split, splits_of
from ..preprocessing import TABLE, Preprocessing, encode_columns, input_columns
from ..schema import MAX_TEXT, Field, FileField, Schema, fold, normalise, parse_schema
from ..task import Setup, Splits
from .cells import canonical, different_cells, explain_number, parse_numbers
from .read import CellError, Table, Values
from .reasons import MAX_FAULTS, DataError, raise_faults
from .targets import Target, as_targets, join_names

UNKNOWN = -2
"""The place of a cell that is in no category; that of a missing value is -1. A cell that is no
number is inf."""

ColumnValues = NDArray[Any]
"""A column by the schema: numbers in float64 with NaN for a missing one, or places of categories,
-1 for none."""


def encode(table: Table, schema: Schema) -> dict[str, ColumnValues]:
    """Return the columns of a table by the schema.

    Raise DataError with all that is wrong with them.
    """
    columns, wrong = read_columns(table, schema)
    raise_faults(wrong)
    return columns


def is_missing(values: ColumnValues) -> NDArray[np.bool_]:
    """Return which rows of a column have no value."""
    return np.isnan(values) if values.dtype.kind == "f" else values == -1


def read_columns(
    table: Table, schema: Schema, names: Collection[str] | None = None
) -> tuple[dict[str, ColumnValues], list[DataError]]:
    """Return the columns of a schema, or `names` of them, and what is wrong with them, the file's columns first."""
    there = dict(table.by_name)
    found: dict[str, ColumnValues] = {}
    wrong: list[DataError] = []
    of_cells: list[DataError] = []
    for name in schema.fields if names is None else names:
        if there.pop(fold(table.file.called(name)), None) is not None:
            found[name] = read_column(table, name, schema, of_cells)
            continue
        found[name] = _no_values(schema.fields[name], len(table))
        if schema.missing_of(name) != "fill":
            own = (
                f"say what it is called by fields.{name}.name under [files.{table.path.name!r}] in"
                " the schema"
            )
            remedy = (
                f'{did_you_mean(name, there.values())}add it, {own}, or missing = "fill" in'
                f" fields.{name}"
            )
            wrong.append(CellError(table, name, f"has no column {name!r}", remedy, "no-column"))
    known = {fold(name) for name in (*schema.ignore, *schema.fields, schema.client)}
    strange = [name for key, name in there.items() if key not in known]
    for name in strange[:MAX_FAULTS]:
        problem = f"has a column {name!r}, which the schema does not name"
        remedy = f"{did_you_mean(name, schema.fields)}add it to ignore, or to fields"
        wrong.append(
            CellError(table, name, problem, remedy, "strange-columns", columns=len(strange))
        )
    return found, [*wrong, *of_cells]


def _no_values(field: Field, rows: int) -> ColumnValues:
    return np.full(rows, -1, np.int32) if field.categories else np.full(rows, np.nan)


def read_column(table: Table, name: str, schema: Schema, wrong: list[DataError]) -> ColumnValues:
    """Return a column that a file has, by the schema; add its faults to those that are `wrong`."""
    field = schema.fields[name]
    values = table.find(table.file.called(name))
    if values is None:
        problem = (
            f"has a column {name!r} of lists, bytes or other values that are neither numbers nor"
            " texts"
        )
        wrong.append(
            CellError(
                table,
                name,
                problem,
                "put it in ignore, or write numbers or texts",
                "strange-column",
            )
        )
        return _no_values(field, len(table))
    missing = {normalise(each).casefold() for each in (*schema.missingValues, *field.missingValues)}
    column = (_read_categories if field.categories else _read_numbers)(
        table, values, name, field, missing, wrong
    )
    rows = np.flatnonzero(is_missing(column))
    if schema.missing_of(name) == "error" and len(rows):
        problem = f"no value, the first of {len(rows)} such cells"
        remedy = (
            'say missing = "drop" in the schema, which leaves such rows out, or "fill": the mean,'
            " or no category"
        )
        wrong.append(
            CellError(table, name, problem, remedy, "missing", int(rows[0]), cells=len(rows))
        )
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
        same = folded.get(text.casefold())
        problem = f"none of the categories {join_names(field.categories)}"
        remedy = "differs from it in upper and lower case: " if same else ""
        if len(text) > MAX_TEXT:
            problem = f"a text of {len(text):,} characters"
            remedy = "correct it, or put the column in ignore"
        else:
            meant = same or find_nearest(text, field.categories) or field.categories[0]
            example = f"fields.{name}.spellings = {{{meant!r} = [{text!r}]}}"
            remedy += (
                "correct it, or add it to the spellings of the category that it means, as in"
                f" {example}"
            )
        wrong.append(_count_fault(table, name, problem, remedy, "no-category", codes == code))
    return found


def _count_fault(
    table: Table, name: str, problem: str, remedy: str, why: str, rows: NDArray[np.bool_]
) -> CellError:
    """Return the fault of these rows, by the first of them."""
    more = int(rows.sum()) - 1
    problem += (
        "" if not more else ", as 1 more row does" if more == 1 else f", as {more:,} more rows do"
    )
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
    numbers[gone], numbers[is_wrong] = np.nan, np.inf
    limits = field.constraints
    there = ~gone & ~is_wrong
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
    for outside, problem in checks:
        if (outside & there).any():
            wrong.append(
                _count_fault(table, name, problem, remedy, "out-of-range", outside & there)
            )
    return numbers


# Clients ------------------------------------------------------------------------------------------


def rows_of_clients(values: Values) -> dict[str, NDArray[np.intp]]:
    """Return the rows of each client that a column names, in the order of names.

    Those of "" are rows without one.
    """
    cells, codes = different_cells(values)
    names = [normalise(cell) for cell in cells]
    order = {name: place for place, name in enumerate(sorted({*names}))}
    places = np.array([order[name] for name in names])[codes]
    rows = np.split(
        np.argsort(places, kind="stable"), np.cumsum(np.bincount(places, minlength=len(order)))[:-1]
    )
    return {name: each for name, each in zip(order, rows, strict=True) if len(each)}


# What is learned from -----------------------------------------------------------------------------


class SiteRows:
    """The rows of one site: those that are used, and the examples that they become."""

    def __init__(self, client: str, table: Table, setup: Setup) -> None:
        self._client = client
        self._text = setup.schema_
        self._schema = parse_schema(setup.schema_)
        columns = encode(table, self._schema)
        usable = np.ones(len(table), np.bool_)
        # a row without a group alone stays
        for name in (self._schema.target, *self._schema.inputs):
            if self._schema.missing_of(name) == "drop":
                usable &= ~is_missing(columns[name])
        rows = len(table)
        kept = int(usable.sum())
        if kept < MIN_EXAMPLES:
            dropped = f", {kept} of them without a missing value" if kept < rows else ""
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
        """Return how this site's rows become inputs: numbers by mean and deviation of its training rows."""
        numbers = {
            name: each
            for name, each in self.values.items()
            if not self._schema.fields[name].categories
        }
        measured = {name: measure_moments(each[self.parts.train]) for name, each in numbers.items()}
        return preprocessing_of(self._text, self._client, measured)

    def splits(self) -> Splits:
        """Return inputs, targets and groups of the examples."""
        schema = self._schema
        inputs = encode_columns(self.preprocessing().columns, self.values)
        targets = as_targets(self.values[schema.target], Target.of(schema))
        places = [
            by.places(self.values[by.column], schema.fields[by.column].categories)
            for by in schema.groupings
        ]
        groups = torch.from_numpy(np.stack(places, axis=1)) if places else None
        return splits_of(inputs, targets, self.parts, groups)

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the site."""
        target = self.values[self._schema.target]
        classes = self._schema.predicted.categories
        held = f"{target.min():g} to {target.max():g}"
        if classes:
            counts = np.bincount(target, minlength=len(classes))
            held = join_names(
                [f"{name}: {count}" for name, count in zip(classes, counts, strict=True)]
            )
        parts = {"train": len(self.parts.train), "test": len(self.parts.test)}
        return {**parts, "target": held, "rows left out": self.left_out}


def preprocessing_of(
    text: str, client: str, measured: Mapping[str, "Moments | None"] | None
) -> Preprocessing:
    """Return how tables become inputs.

    `measured` are mean and deviation of the client's own columns, None: unknown.

    `text` is the schema's.
    """
    schema = parse_schema(text)
    target = Target.of(schema)
    apart = any(not field.categories and field.center is None for field in schema.inputs.values())
    return Preprocessing(
        form=TABLE,
        columns=input_columns(schema, measured or {}),
        target=schema.target,
        classes=target.classes,
        target_center=target.center,
        target_scale=target.scale,
        client=client,
        per_client=apart and measured is None,
        schema=text,
    )


Moments = tuple[float, float]
"""Mean and standard deviation."""


def measure_moments(numbers: NDArray[np.float64]) -> Moments | None:
    """Return mean and standard deviation of the numbers that are not missing, the deviation 0 where it is constant."""
    if not len(numbers):
        return None
    low = numbers.min()
    if np.isnan(low):
        return measure_moments(numbers[~np.isnan(numbers)])
    if low == numbers.max():  # the deviation would be a rounding error
        return float(numbers[0]), 0.0
    return float(numbers.mean()), float(numbers.std())

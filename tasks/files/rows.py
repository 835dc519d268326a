"""The rows of one site, by the schema: what is wrong with them, and the examples that they become."""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean, find_nearest

from ..groups import GroupBy
from ..partition import MIN_EXAMPLES, Parts, split, splits_of
from ..preprocessing import TABLE, Preprocessing, encode_columns, input_columns
from ..schema import MAX_TEXT, Field, FileField, Schema, fold, normalise, parse_schema
from ..task import Setup, Splits
from .reading.numbers import canonical, format_number, parse_number
from .reading.table import Rows, Table, Values
from .reasons import MAX_FAULTS, CellError, DataError, raise_faults
from .targets import Target, as_targets, join_names

MAX_NUMBER = 1e100
"""Numbers beyond cannot be squared and summed."""

UNKNOWN = -2
"""The place of a cell that is in no category; that of a missing value is -1."""

MINUS = re.compile("[\u2010-\u2015\u2212\ufe63\uff0d]")
NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
GROUPED = re.compile(r"[+-]?[0-9]{1,3}([ '.,][0-9]{3})+([.,][0-9]+)?")
WITH_UNIT = re.compile(r"(?P<number>[+-]?[0-9]*[.,]?[0-9]+)\s*(?P<unit>[^\d\s.,][^\d]*)")
BOUND = re.compile(r"[<>≤≥~≈]=?\s*(?P<number>[0-9.,]+)")

ColumnValues = NDArray[Any]
"""A column by the schema: numbers in float64 with NaN for a missing one, or places of categories, -1 for none."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A column's values by the schema, which rows have none, and its faults."""

    values: ColumnValues
    is_missing: NDArray[np.bool_]
    faults: tuple[DataError, ...] = ()


def faults(table: Table, schema: Schema, names: Collection[str] | None = None) -> list[DataError]:
    """Return what in a table is not as the schema says, of `names` alone if they are given: cells and columns."""
    found, wrong = read_columns(table, schema, names)
    return [*wrong, *(fault for cells in found.values() for fault in cells.faults)]


def encode(table: Table, schema: Schema) -> dict[str, Cells]:
    """Return the columns of a table by the schema; raise DataError with all that is wrong with them."""
    found, wrong = read_columns(table, schema)
    raise_faults([*wrong, *(fault for cells in found.values() for fault in cells.faults)])
    return found


def read_columns(
    table: Table, schema: Schema, names: Collection[str] | None = None
) -> tuple[dict[str, Cells], list[DataError]]:
    """Return the columns that the schema names, and what is wrong with the file's columns as a whole."""
    there = dict(table.by_name)
    found: dict[str, Cells] = {}
    wrong: list[DataError] = []
    for name in schema.fields if names is None else names:
        key = there.pop(fold(table.file.called(name)), None)
        if key is None:
            if schema.missing_of(name) != "fill":
                wrong.append(_lacking_column(table, name, there.values()))
                continue
            found[name] = _no_cells(schema.fields[name], len(table))
        else:
            found[name] = read_column(table, table.columns[key], name, schema)
    known = {fold(name) for name in (*schema.ignore, *schema.fields, schema.client)}
    wrong += _strange_columns(table, schema, [name for key, name in there.items() if key not in known])
    return found, wrong


def _no_cells(field: Field, rows: int, *faults: DataError) -> Cells:
    values = np.full(rows, -1, np.int32) if field.categories else np.full(rows, np.nan)
    return Cells(values, np.ones(rows, np.bool_), faults)


def _lacking_column(table: Table, name: str, others: Collection[str]) -> DataError:
    hint = did_you_mean(name, others)
    remedy = (
        f"{hint}add it, say what it is called by fields.{name}.name under [files.{table.source.path.name!r}] in the "
        f'schema, or missing = "fill" in fields.{name}'
    )
    return CellError(table.source, name, f" has no column {name!r}", remedy, "no-column")


def _strange_columns(table: Table, schema: Schema, names: Sequence[str]) -> list[DataError]:
    return [
        CellError(
            table.source,
            name,
            f" has a column {name!r}, which the schema does not name",
            f"{did_you_mean(name, schema.fields)}add it to ignore, or to fields",
            "strange-columns",
            columns=len(names),
        )
        for name in names[:MAX_FAULTS]
    ]


def read_column(table: Table, values: Values | None, name: str, schema: Schema) -> Cells:
    """Return a column by the schema, with its faults."""
    field = schema.fields[name]
    if values is None:
        remedy = "put it in ignore, or write numbers or texts"
        problem = f" has a column {name!r} of lists, bytes or other values that are neither numbers nor texts"
        return _no_cells(field, len(table), CellError(table.source, name, problem, remedy, "strange-column"))
    missing = {normalise(each).casefold() for each in (*schema.missingValues, *field.missingValues)}
    if field.categories:
        cells = _read_categories(table, values, name, field, missing)
    else:
        cells = _read_numbers(table, values, name, field, missing)
    if schema.missing_of(name) != "error" or not (gone := np.flatnonzero(cells.is_missing)).size:
        return cells
    lacking = CellError(
        table.source,
        name,
        f"no value, the first of {len(gone)} such cells",
        'say missing = "drop" in the schema, which leaves such rows out, or "fill": the mean, or no category',
        "missing",
        row=int(gone[0]),
        value=_shorten(_text_at(values, int(gone[0]))),
        cells=len(gone),
    )
    return replace(cells, faults=(*cells.faults, lacking))


def _text_at(values: Values, row: int) -> str:
    value = values[row].as_py()
    return "" if value is None else str(value)


# Categories -----------------------------------------------------------------------------------------------------------


def different_cells(values: Values) -> tuple[list[str], NDArray[np.int32]]:
    """Return the different cells of a column as texts, and which of them each row has."""
    import pyarrow as pa  # imported late: a server reads no tables

    coded = values.dictionary_encode().combine_chunks()
    cells = coded.dictionary.to_pylist()
    if not pa.types.is_string(values.type):
        cells = [format_number(each) if isinstance(each, float) else str(each) for each in cells]
    codes = np.from_dlpack(coded.indices.fill_null(len(cells)))
    return [*cells, ""], codes.astype(np.int32)


def _read_categories(table: Table, values: Values, name: str, field: Field, missing: Collection[str]) -> Cells:
    cells, codes = different_cells(values)
    places = []
    for cell in cells:
        text = normalise(cell)
        place = field.places.get(text, field.places.get(canonical(text, table.decimal), UNKNOWN))
        places.append(-1 if place == UNKNOWN and text.casefold() in missing else place)
    found = np.array(places, np.int32)[codes]
    if (found != UNKNOWN).all():
        return Cells(found, found == -1)
    problems = []
    for code in [code for code, place in enumerate(places) if place == UNKNOWN and (codes == code).any()]:
        rows = np.flatnonzero(codes == code)
        problem, remedy = _explain_category(cells[code], name, field)
        problem += _count_more(len(rows))
        problems.append(
            CellError(table.source, name, problem, remedy, "no-category", row=int(rows[0]), value=_shorten(cells[code]))
        )
    return Cells(np.where(found == UNKNOWN, -1, found), found == -1, tuple(problems[:MAX_FAULTS]))


def _explain_category(cell: str, name: str, field: Field) -> tuple[str, str]:
    """Return what is wrong with a cell that is in none of the categories, and what would do."""
    text = normalise(cell)
    if len(text) > MAX_TEXT:
        return f"a text of {len(text):,} characters", "correct it, or put the column in ignore"
    by_case = {spelling.casefold(): place for spelling, place in field.places.items()}
    place = by_case.get(text.casefold())
    near = field.categories[place] if place is not None else find_nearest(text, field.categories)
    differs = "differs from it in upper and lower case: " if place is not None else ""
    known = near or field.categories[0]
    return (
        f"none of the categories {join_names(field.categories)}",
        f"{differs}correct it, or add it to the spellings of the category that it means, as in "
        f"fields.{name}.spellings = {{{known!r} = [{text!r}]}}",
    )


# Numbers --------------------------------------------------------------------------------------------------------------


def _read_numbers(table: Table, values: Values, name: str, field: Field, missing: Collection[str]) -> Cells:
    about = table.file.fields.get(name, FileField())
    numbers, wrong, gone = parse_numbers(values, table, {field.unit, about.unit} - {""}, missing)
    if about.factor != 1.0:
        numbers = numbers * about.factor
    problems: list[DataError] = []
    if wrong.any():
        cells, codes = different_cells(values.filter(_mask(wrong)))
        rows = np.flatnonzero(wrong)
        for code in range(min(len(cells) - 1, MAX_FAULTS)):
            problem, remedy = _explain_number(cells[code], name, field, table)
            problem += _count_more(int((codes == code).sum()))
            first = int(rows[np.argmax(codes == code)])
            problems.append(
                CellError(table.source, name, problem, remedy, "no-number", row=first, value=_shorten(cells[code]))
            )
    numbers[gone | wrong] = np.nan
    problems += _find_strange_numbers(table, values, numbers, name, field)
    return Cells(numbers, gone, tuple(problems))


def parse_numbers(
    values: Values, table: Table, units: Collection[str], missing: Collection[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the numbers of a column, which cells are none, and which are missing values."""
    import pyarrow as pa
    from pyarrow import compute

    coded = [number for each in missing if (number := parse_number(each)) is not None and number == number]
    if not pa.types.is_string(values.type):
        numbers = np.array(_to_array(values.cast(pa.float64(), safe=False).fill_null(np.nan)))
        gone = np.isnan(numbers) | np.isin(numbers, coded)
        return numbers, ~gone & ~(np.abs(numbers) <= MAX_NUMBER), gone
    if table.decimal == "." and not table.file.groupChar:
        try:
            numbers = np.array(_to_array(values.cast(pa.float64())))
            if _are_usable(numbers):
                return numbers, np.zeros(len(numbers), np.bool_), np.isin(numbers, coded)
        except pa.ArrowInvalid:
            pass  # some of them may be missing, or no numbers
    texts = compute.utf8_trim_whitespace(values)
    gone = _to_array(compute.is_in(compute.utf8_lower(texts), pa.array([*missing], pa.string())))
    for unit in units:
        texts = compute.replace_substring_regex(texts, rf"^([0-9.,+\- ]+?)\s*{re.escape(unit)}$", r"\1")
    if mark := table.file.groupChar:
        texts = compute.replace_substring_regex(texts, "[\u00a0\u2009\u202f]", " ")
        pattern = rf"^[+-]?[0-9]{{1,3}}({re.escape(mark)}[0-9]{{3}})+({re.escape(table.decimal)}[0-9]+)?$"
        plain = compute.replace_substring(texts, mark, "")
        texts = compute.if_else(compute.match_substring_regex(texts, pattern), plain, texts)
    if table.decimal == ",":
        texts = compute.replace_substring(compute.replace_substring(texts, ".", "!"), ",", ".")
    is_number = compute.match_substring_regex(texts, f"^{NUMBER}$")
    numbers = np.array(_to_array(compute.if_else(is_number, texts, "nan").cast(pa.float64())))
    gone |= np.isin(numbers, coded)
    return numbers, ~gone & ~(np.abs(numbers) <= MAX_NUMBER), gone


def _are_usable(numbers: NDArray[np.float64]) -> bool:
    """Return whether all numbers are finite, and can be squared and summed."""
    return not len(numbers) or bool(numbers.min() >= -MAX_NUMBER and numbers.max() <= MAX_NUMBER)


def _to_array(values: Values) -> NDArray[Any]:
    """Return a column as an array; NumPy's bool where it is of booleans."""
    array = values.combine_chunks()
    if str(array.type) == "bool":
        array = array.cast("uint8")
        return np.array(np.from_dlpack(array), np.bool_)
    return np.from_dlpack(array)  # to_numpy would import pandas where it is installed


def _mask(rows: NDArray[np.bool_]) -> Values:
    import pyarrow as pa

    return pa.array(rows)


def _explain_number(cell: str, name: str, field: Field, table: Table) -> tuple[str, str]:
    """Return what is wrong with a cell that is no number, by its sign, unit or separator, and what would do."""
    file, text = f"[files.{table.source.path.name!r}]", normalise(cell)
    if sign := MINUS.search(cell):
        return (
            f"with the sign {sign[0]!r} (U+{ord(sign[0]):04X}) for a minus",
            f"write {MINUS.sub('-', text)}, with a hyphen",
        )
    if BOUND.fullmatch(text):
        return "a bound and no number", f"write a number, or add it to fields.{name}.missingValues"
    other = "," if table.decimal == "." else "."
    if GROUPED.fullmatch(text):
        mark = next(each for each in text if each in " '.,")
        says = f", or decimalChar = {mark!r} if it is the decimal mark" if mark == other else ""
        return (
            f"a number with {mark!r} between thousands",
            f"write it without, or say groupChar = {mark!r}{says} under {file} in the schema",
        )
    if re.fullmatch(rf"[+-]?[0-9]*\{other}[0-9]+", text):
        return (
            f"a number with a decimal {'comma' if other == ',' else 'point'}",
            f"write {text.replace(other, table.decimal)}, or say decimalChar = {other!r} under {file} in the schema",
        )
    if found := WITH_UNIT.fullmatch(text):
        unit = found["unit"].strip()
        what = "a per cent sign" if unit == "%" else f"the unit {unit!r}"
        if field.unit and unit != field.unit:
            remedy = f"write it in {field.unit}; for a whole file say fields.{name} = {{unit, factor}} under {file}"
        else:
            remedy = f"write {found['number']}, or say unit = {unit!r} in fields.{name}"
        return f"a number with {what}", remedy
    if (number := parse_number(text)) is not None and abs(number) > MAX_NUMBER:
        return f"and numbers are at most {MAX_NUMBER:g}", "correct it, or leave the cell empty"
    return (
        "which is no number",
        f"correct it, leave the cell empty, or add it to fields.{name}.missingValues",
    )


def _find_strange_numbers(
    table: Table, values: Values, numbers: NDArray[np.float64], name: str, field: Field
) -> list[DataError]:
    """Return the first number, if any, that the schema does not allow, for each limit."""
    limits, found = field.constraints, list[DataError]()
    checks = [
        (numbers < limits.minimum, f"below the minimum, {limits.minimum:g}"),
        (numbers > limits.maximum, f"above the maximum, {limits.maximum:g}"),
    ]
    if limits.enum:
        allowed = join_names([f"{each:g}" for each in limits.enum])
        checks.append((~np.isnan(numbers) & ~np.isin(numbers, limits.enum), f"and allowed are {allowed}"))
    if field.type == "integer":
        checks.append((numbers != np.round(numbers), "which is no whole number"))
    for outside, words in checks:
        rows = np.flatnonzero(outside & ~np.isnan(numbers))
        if len(rows):
            row = int(rows[0])
            remedy = f"correct it, or the schema; a code for a missing value belongs in fields.{name}.missingValues"
            problem = words + _count_more(len(rows))
            cell = _shorten(_text_at(values, row))
            found.append(CellError(table.source, name, problem, remedy, "out-of-range", row=row, value=cell))
    return found


def _count_more(rows: int) -> str:
    """Return, for the end of a problem, how many more rows have it."""
    return "" if rows == 1 else ", as 1 more row does" if rows == 2 else f", as {rows - 1:,} more rows do"


def _shorten(text: str) -> str:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return "".join(
        each if each.isprintable() and not unicodedata.combining(each) else ascii(each)[1:-1] for each in shown
    )


# What is learned from -------------------------------------------------------------------------------------------------


class SiteRows:
    """The rows of one site: those that are used, and the examples that they become."""

    def __init__(self, client: str, table: Table, setup: Setup, text: str) -> None:
        self.schema, self.source, self._client, self._text = parse_schema(text), table.source, client, text
        self.cells = encode(table, self.schema)
        self.rows = self._find_usable(len(table))
        self.parts: Parts = split(np.arange(len(self.rows)), setup, client)

    def _find_usable(self, count: int) -> Rows:
        """Return the rows that are learned from, as the schema says of missing values."""
        lacking = [cells.is_missing for name, cells in self.cells.items() if self._drops(name)]
        kept = np.flatnonzero(~np.any(lacking, axis=0)) if lacking else np.arange(count)
        if len(kept) < MIN_EXAMPLES:
            dropped = f", {len(kept)} of them without a missing value" if len(kept) < count else ""
            raise DataError(
                f"{self.source.where} has {count} row{'s' * (count != 1)}{dropped}: at least {MIN_EXAMPLES} are "
                "needed, four fifths for training and one for testing: add rows, or leave this client out",
                "few-rows",
                rows=count,
                kept=len(kept),
                fewest=MIN_EXAMPLES,
            )
        return kept

    def _drops(self, name: str) -> bool:
        """Return whether a row without this column's value is left out; one without a group stays."""
        return self.schema.missing_of(name) == "drop" and (name == self.schema.target or name in self.schema.inputs)

    def preprocessing(self) -> Preprocessing:
        """Return how this site's rows become inputs: numbers by mean and deviation of its training rows."""
        train = self.rows[self.parts.train]
        measured = {
            name: measure_moments(cells.values[train])
            for name, cells in self.cells.items()
            if not self.schema.fields[name].categories
        }
        return preprocessing_of(self._text, self._client, measured)

    def splits(self) -> Splits:
        """Return inputs, targets and groups of the examples."""
        values = {name: cells.values[self.rows] for name, cells in self.cells.items()}
        inputs = encode_columns(self.preprocessing().columns, values)
        targets = as_targets(values[self.schema.target], Target.of(self.schema))
        groups = torch.from_numpy(self._groups(values)) if self.schema.groups else None
        return splits_of(inputs, targets, self.parts, groups)

    def _groups(self, values: Mapping[str, ColumnValues]) -> NDArray[np.int64]:
        """Return the place of each row's group in each grouping, shape (rows, groupings)."""
        return np.stack([self._places(by, values[by.column]) for by in self.schema.groupings], axis=1)

    def _places(self, by: GroupBy, values: ColumnValues) -> NDArray[np.int64]:
        if by.sign:
            return by.halve(values)
        return np.where(values < 0, len(self.schema.fields[by.column].categories), values).astype(np.int64)

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the site."""
        target, schema = self.cells[self.schema.target].values[self.rows], self.schema
        classes = schema.predicted.categories
        counts = np.bincount(target, minlength=len(classes)) if classes else ()
        named = join_names([f"{name}: {count}" for name, count in zip(classes, counts, strict=True)])
        return {
            "train": len(self.parts.train),
            "test": len(self.parts.test),
            "target": named if classes else f"{target.min():g} to {target.max():g}",
            "rows left out": len(self.cells[schema.target].values) - len(self.rows),
        }


def preprocessing_of(text: str, client: str, measured: Mapping[str, "Moments | None"] | None) -> Preprocessing:
    """Return how tables become inputs; `measured` are mean and deviation of the client's own columns, None: unknown.

    `text` is the schema's.
    """
    schema = parse_schema(text)
    target = Target.of(schema)
    columns = input_columns(schema, measured or {})
    apart = any(not field.categories and field.center is None for field in schema.inputs.values())
    return Preprocessing(
        form=TABLE,
        columns=columns,
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

SMALLEST_SQUARED = 1e-150
"""Squares of smaller numbers lose digits, and are 0 from 1e-162 on."""


def measure_moments(numbers: NDArray[np.float64]) -> Moments | None:
    """Return mean and standard deviation of the numbers that are not missing, the deviation 0 where it is constant."""
    if not len(numbers):
        return None
    low = numbers.min()
    if np.isnan(low):
        return measure_moments(numbers[~np.isnan(numbers)])
    if low == numbers.max():  # the deviation would be a rounding error
        return float(numbers[0]), 0.0
    unit = unit_of(np.abs(numbers).max())
    return float(numbers.mean()), float(unit * (numbers / unit).std())


def unit_of(largest: float) -> float:
    """Return what numbers are divided by before they are squared: 1, or the largest where the squares would be 0."""
    return float(largest) if 0.0 < largest < SMALLEST_SQUARED else 1.0

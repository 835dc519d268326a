"""New rows of a table, from a file or a data frame, checked by the schema of the run."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.tables.encoding import is_missing, is_unknown, read_column, read_columns
from fairbloom.tables.preprocessing import Preprocessing
from fairbloom.tables.reading import CellError, ReadTable, columns_by_name
from fairbloom.tables.schema import SchemaFile
from fairbloom.text import join_first, plural

if TYPE_CHECKING:
    import pandas


def table_of_frame(frame: "pandas.DataFrame", file: SchemaFile) -> ReadTable:
    """Return the rows of a data frame, read as the `file` that its `to_csv` would write."""
    import pyarrow as pa  # imported late, as in reading files

    path = Path("the data frame")
    columns = []
    for _, cells in frame.items():
        filled = cells.astype(object).where(~cells.isna(), "")
        columns.append(pa.chunked_array([[*map(str, filled)]], pa.string()))
    return ReadTable(
        path,
        columns_by_name(path, [*map(str, frame.columns)], columns),
        np.arange(len(frame)),
        "row",
        file,
    )


def texts_of(table: ReadTable, name: str) -> list[str]:
    """Return the cells of a column as text, unchanged."""
    cells = table.columns[name]
    if cells is None:
        return [""] * len(table)
    return ["" if cell is None else str(cell) for cell in cells.to_pylist()]


def values_of(table: ReadTable, preprocessing: Preprocessing) -> dict[str, NDArray[Any]]:
    """Return the values of the model's input columns; raise FairbloomError with all problems."""
    schema = preprocessing.dictionary
    if not len(table):
        raise FairbloomError(
            f"{table.path} has no rows below the names of its columns: nothing to predict"
        )
    found, faults = read_columns(table, schema, [*schema.inputs])
    wrong = [fault for fault in faults if isinstance(fault, CellError)]
    of_columns = [str(each) for each in wrong if each.rows is None]
    if of_columns:
        raise FairbloomError("; ".join(of_columns))
    problems = [(each.line, str(each)) for each in wrong if each.why != "missing"]
    lacking = [name for name in schema.inputs if not table.own_names(name)]
    if lacking:
        log.warning(
            "%s has no column %s: it is missing in all rows, as training fills it",
            table.path,
            join_first(lacking),
        )
    for name, column in found.items():
        if schema.missing_of(name) == "fill":
            continue
        fault = f"column {name!r} has no value, and training filled none in"
        for line in table.lines[is_missing(column)].tolist():
            problems.append((line, f"{table.unit} {line}, {fault}"))
    if problems:
        raise FairbloomError(list_problems(str(table.path), problems, len(table), "rows"))
    return found


def true_values_of(table: ReadTable, preprocessing: Preprocessing) -> NDArray[Any] | None:
    """Return the target of each row in the schema's words or unit; None if there is no such column.

    A cell that cannot be read, or that is missing, is "" or NaN.
    """
    schema = preprocessing.dictionary
    if table.find(table.column_name(schema.target)) is None:
        return None
    values = read_column(table, schema.target, schema, [])
    if not schema.predicted.categories:
        return np.where(is_unknown(values), math.nan, values)
    # The last word is that of the places -1, a missing value, and -2, an unknown one.
    return np.array([*schema.predicted.categories, ""], object)[np.maximum(values, -1)]


def list_problems(source: str, problems: Sequence[tuple[int, str]], of: int, noun: str) -> str:
    """Return an error text from (place, problem) pairs: the first few, and their number.

    `of` is the number of all examples, and `noun` their name.
    """
    ordered = sorted(problems)
    lines = [problem for _, problem in ordered[:20]]
    if len(ordered) > len(lines):
        lines.append(f"and {len(ordered) - len(lines):,} more")
    count = len({place for place, _ in ordered})
    them = plural(count, "it", "them")
    first = (
        f"{source}: {count:,} of {of:,} {noun} cannot be read: correct {them}, or leave {them} out:"
    )
    return "\n  ".join([first, *lines])

"""Tables of the UCI archive: values with commas between, no line of names, and a sign where a value is not known."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fairbloom.errors import FairbloomError

from ..groups import parse_groups
from ..schema import Schema, find_wrong_groups
from ..tables.encode import ColumnValues, encode
from ..tables.read import Table


def describe_columns(schema: Schema, key: str, group: str) -> Schema:
    """Return a data set's schema with the groups that a setting names under a key.

    FairbloomError where it cannot.
    """
    found = schema.model_copy(update={"groups": tuple(by.name for by in parse_groups(key, group))})
    for fault in find_wrong_groups(found, key):
        raise FairbloomError(fault)
    return found


def read_columns(path: Path, columns: Sequence[str], schema: Schema) -> Mapping[str, ColumnValues]:
    """Return those columns of a file that a schema describes, as it does.

    Lines that begin with | are remarks.
    """
    reading = csv.ReadOptions(column_names=columns)
    remarks = csv.ParseOptions(
        invalid_row_handler=lambda row: "skip" if row.text.startswith("|") else "error"
    )
    converting = csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
    try:
        table = csv.read_csv(path, reading, remarks, converting)
    except (OSError, ValueError) as error:
        raise FairbloomError(f"{path}: {error}: put the original in its place") from error
    if not len(table):
        raise FairbloomError(f"{path} has no rows: put the original in its place")
    there = {name: table.column(name) for name in columns}
    return encode(Table(path, there, np.arange(1, len(table) + 1), "row", header=0), schema)

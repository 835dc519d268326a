"""Read tables of the UCI archive: values separated by commas, without a line of names."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import split_names
from fairbloom.tables.encoding import ColumnValues, read_columns as encode_columns
from fairbloom.tables.groups import read_groups
from fairbloom.tables.reading import ReadTable
from fairbloom.tables.reasons import raise_faults
from fairbloom.tables.schema import Schema, find_wrong_groups


def describe_columns(schema: Schema, key: str, group: str) -> Schema:
    """Return a data set's schema with the groups that the setting `key` names.

    Raise FairbloomError if it cannot have these groups.
    """
    groups = read_groups(key, split_names(group))
    found = schema.model_copy(update={"groups": tuple(by.name for by in groups)})
    for fault in find_wrong_groups(found, key):
        raise FairbloomError(fault)
    return found


def read_columns(path: Path, columns: Sequence[str], schema: Schema) -> Mapping[str, ColumnValues]:
    """Return the columns of a file that a schema describes; lines beginning with | are comments."""
    reading = csv.ReadOptions(column_names=columns)
    parsing = csv.ParseOptions(
        invalid_row_handler=lambda row: "skip" if row.text.startswith("|") else "error"
    )
    converting = csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
    try:
        table = csv.read_csv(path, reading, parsing, converting)
    except (OSError, ValueError) as error:
        raise FairbloomError(f"{path}: {error}: put the original in its place") from error
    if not len(table):
        raise FairbloomError(f"{path} has no rows: put the original in its place")
    cells = {name: table.column(name) for name in columns}
    read = ReadTable(path, cells, np.arange(1, len(table) + 1), "row")
    found, faults = encode_columns(read, schema)
    raise_faults(faults)
    return found

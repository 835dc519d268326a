"""Parquet files, whose columns have types: numbers stay such, all others become the texts of a CSV file."""

from pathlib import Path
from typing import Any

import numpy as np

from ...schema import Decimal, File
from ..reasons import DataError
from .table import RawTable, Source, Values

MAX_CELLS = 2**31
"""Larger tables are refused: a few bytes of a hostile file may stand for any number of rows."""


def read_parquet(path: Path, file: File) -> RawTable:
    """Return the columns of a Parquet file: numbers as they are, all others that are plain as texts."""
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as content:
            names, rows = content.schema_arrow.names, content.metadata.num_rows
            if rows * len(names) > MAX_CELLS:
                raise DataError(
                    f"{path} has {rows:,} rows of {len(names):,} columns, and {MAX_CELLS:,} values are the most: take "
                    "a part of it",
                    "too-large",
                )
            shown = [name for name in names if not name.startswith("__index_level_")]  # of pandas
            kinds = dict(zip(names, content.schema_arrow.types, strict=True))
            plain = [name for name in shown if is_plain(kinds[name])]
            table = content.read(columns=plain, use_threads=False)
            columns = {name: to_numbers_or_texts(table.column(name), file.decimalChar or ".") for name in plain}
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())[:200] or "it needs more memory than there is"
        raise DataError(f"{path} cannot be read as a .parquet file ({why}): write it again", "no-table") from error
    if plain and len(table) != rows:
        raise DataError(f"{path} has {len(table):,} rows, and says that it has {rows:,}: write it again", "unreadable")
    source = Source(path, np.arange(1, rows + 1), unit="row", header=0)
    return RawTable(source, [name.strip() for name in shown], [columns.get(name) for name in shown])


def is_plain(kind: Any) -> bool:
    """Return whether a column holds numbers or texts: no lists, structures or bytes."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    simple = (
        *(types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal),
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_date, types.is_timestamp, types.is_time),
    )
    return any(is_kind(kind) for is_kind in simple)


def to_numbers_or_texts(values: Values, decimal: Decimal) -> Values:
    """Return a column of numbers as it is, and any other one as the texts that a CSV file would have."""
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if types.is_integer(kind) or types.is_floating(kind):
        return values
    if types.is_boolean(kind):
        values = compute.if_else(values, "True", "False")
    elif types.is_timestamp(kind):
        values = compute.replace_substring_regex(values.cast(pa.string()), r"\.0+(Z?)$", r"\1")
    elif types.is_decimal(kind):
        values = compute.replace_substring(values.cast(pa.string()), ".", decimal)
    return values.cast(pa.string()).fill_null("")

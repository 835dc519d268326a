"""Parquet and Feather files as pyarrow reads them: columns that have types, and records that have numbers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..reasons import DataError
from .cells import RawTable, Values
from .numbers import Decimal
from .table import ColumnHints, Source
from .text import check_names

MAX_CELLS = 2**31
"""Larger tables are refused: a few bytes of a hostile file may stand for any number of rows."""


def read_columnar(path: Path, hints: ColumnHints, show: Callable[[float], None]) -> RawTable:
    """Return the cells of a Parquet or Feather file; columns that are not numbers become the texts of a CSV file."""
    import pyarrow as pa  # imported late: a server reads no tables

    with explained(path), opened(path) as (schema, rows, batches):
        names = [name for name in schema.names if not name.startswith("__index_level_")]  # of pandas
        if rows * len(names) > MAX_CELLS:
            raise DataError(
                f"{path} has {rows:,} rows of {len(names):,} columns, and {MAX_CELLS:,} values are the most: take a "
                "part of it",
                "too-large",
            )
        source = Source(path, np.arange(1, rows + 1), unit="row", header=0)
        check_names(source, [name.strip() for name in names])
        wanted = []
        for place, name in enumerate(names, start=1):
            readable, is_ignored = is_plain(schema.field(name).type), name.strip().lower() in hints.ignored
            if not readable and not is_ignored:
                raise strange_column_error(path, name, place, schema.field(name).type)
            if readable and (hints.reads_ignored or not is_ignored):
                wanted.append(name)
        blocks: dict[str, list[Values]] = {name: [] for name in names}
        read = 0
        for batch in batches(wanted):
            for name in wanted:
                values = batch.column(batch.schema.get_field_index(name))
                blocks[name].append(to_numbers_or_texts(values, hints.decimal))
            read += len(batch)
            show(read / max(rows, 1))
        columns = [pa.chunked_array(found or [pa.array([], pa.string())]) for found in blocks.values()]
    if read != rows and wanted:
        raise DataError(f"{path} has {read:,} rows, and says that it has {rows:,}: write it again", "unreadable")
    return RawTable(source, [name.strip() for name in names], columns)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises about a damaged file into a DataError."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())[:200] or "it needs more memory than there is"
        raise DataError(
            f"{path} cannot be read as a {path.suffix.lower()} file ({why}): write it again", "no-table"
        ) from error


Batches = Callable[[Sequence[str]], Iterator[Any]]


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, int, Batches]]:
    """Yield the schema of a file, its number of rows, and a function that yields record batches of some columns."""
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            yield (
                file.schema_arrow,
                file.metadata.num_rows,
                lambda names: file.iter_batches(columns=list(names), use_threads=False),
            )
        return
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
        batches = [reader.get_batch(k) for k in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # a damaged file could end the process otherwise
        yield reader.schema, sum(map(len, batches)), lambda names: (batch.select(list(names)) for batch in batches)


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


def strange_column_error(path: Path, name: str, place: int, kind: Any) -> DataError:
    """Return the error of a column that can be neither numbers nor categories."""
    return DataError(
        f"{path}, column {name!r} holds values of the type {kind}, which are neither numbers nor texts: leave it out "
        f"by csv.ignore={name}, or write numbers or texts",
        "strange-column",
        column=place,
    )


def to_numbers_or_texts(values: Values, decimal: Decimal) -> Values:
    """Return an array of numbers as it is, and any other one as the texts that a CSV file would have."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if types.is_integer(kind) or types.is_floating(kind):
        return values
    if types.is_boolean(kind):
        values = pa.array(["False", "True"]).take(values.cast(pa.int8()))
    elif types.is_timestamp(kind):
        values = pa.compute.replace_substring_regex(values.cast(pa.string()), r"\.0+(Z?)$", r"\1")
    elif types.is_decimal(kind):
        texts = values.cast(pa.string())
        values = texts if decimal == "." else pa.compute.replace_substring(texts, ".", decimal)
    return values.cast(pa.string()).fill_null("")

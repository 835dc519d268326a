"""Tables of the UCI archive: values with commas between, no line of names, and a sign where a value is not known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyarrow import csv

from fairbloom.errors import FairbloomError

UNKNOWN = "?"
"""What stands in place of a value that is not known."""


def read_table(path: Path, columns: Sequence[str], kind: Any) -> Any:
    """Return a file as a table of Arrow, with columns of one type; a number that is not known is null.

    Lines that begin with | are remarks.
    """
    reading = csv.ReadOptions(column_names=columns)
    remarks = csv.ParseOptions(invalid_row_handler=lambda row: "skip" if row.text.startswith("|") else "error")
    types = dict.fromkeys(columns, kind)
    converting = csv.ConvertOptions(column_types=types, null_values=[UNKNOWN])
    try:
        table = csv.read_csv(path, reading, remarks, converting)
    except (OSError, ValueError) as error:
        raise FairbloomError(f"{path}: {error}: put the original in its place") from error
    if not len(table):
        raise FairbloomError(f"{path} has no rows: put the original in its place")
    return table

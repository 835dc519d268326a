"""What separates the values of a CSV file, and how a table in another format is made such a file."""

import json
import re
import shlex
from pathlib import Path

from .reasons import DataError

DELIMITERS = (",", ";", "\t", "|")

BY_PANDAS = {".parquet": "read_parquet", ".feather": "read_feather"}
"""The endings of tables that programs write, and what pandas reads them by."""

SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
"""The endings of tables that spreadsheet programs write."""

STARTS = {b"PAR1": ".parquet", b"ARROW1": ".feather", b"PK\x03\x04": ".xlsx", b"\xd0\xcf\x11\xe0": ".xls"}
"""What files of these formats begin with, whatever their names end with."""


def format_of(content: bytes) -> str:
    """Return the ending that files with this content usually have, "" where it is none of those we know."""
    return next((ending for start, ending in STARTS.items() if content.startswith(start)), "")


def how_to_convert(path: Path, ending: str) -> str:
    """Return how files of the format with this ending are made CSV files, "" for an ending that we do not know."""
    if ending in BY_PANDAS:
        return f"convert it, for example by {_pandas_command(path, path.with_suffix('.csv'), BY_PANDAS[ending])}"
    if ending in SPREADSHEETS:
        return "open it in a spreadsheet program, and save its sheet as CSV UTF-8 (comma delimited)"
    return ""


def how_to_write_points(path: Path) -> str:
    """Return a command that replaces a CSV file by one with decimal points, and commas between values."""
    return _pandas_command(path, path, "read_csv", sep=find_delimiter(path), decimal=",")


def find_delimiter(path: Path) -> str:
    """Return what separates the names in the first line; raise DataError when nothing does, or when it names nothing.

    Excel writes, and it alone reads, a first line that states the separator: sep=;
    """
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        first = next((line for line in file if line.strip()), "")
    if re.fullmatch(r'"?sep=.?"?[,;]*', first.strip(), re.IGNORECASE):
        raise DataError(
            f"{path}, line 1 is {first.strip()!r}, which Excel alone reads: remove this line, so that the first line "
            "names the columns; their separator is found without it",
            "separator-line",
        )
    outside = re.sub(r'"[^"]*"', "", first)
    best = max(DELIMITERS, key=outside.count)
    if first and not outside.count(best):
        raise DataError(
            f"{path}, line 1 names one column only, {first.strip()[:60]!r}: columns are separated by comma, semicolon, "
            "tab or |",
            "one-column",
        )
    return best


def _pandas_command(path: Path, csv: Path, reader: str, **options: str) -> str:
    """Return a command line that reads a table by pandas, and writes it as a CSV file."""
    given = "".join(f", {name}={json.dumps(value)}" for name, value in options.items())
    source, target = (json.dumps(str(each), ensure_ascii=False) for each in (path, csv))
    return f"python -c {shlex.quote(f'import pandas; pandas.{reader}({source}{given}).to_csv({target}, index=False)')}"

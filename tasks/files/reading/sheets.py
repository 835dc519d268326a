"""Spreadsheets: the cells of a workbook's sheet, as another process reads them, which a damaged workbook may end."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fairbloom.errors import did_you_mean

from ..reasons import DataError
from ..targets import join_names
from .cells import RawTable, Values
from .numbers import Decimal, format_number
from .table import ColumnHints, Source, where
from .text import ROWS_AT_ONCE, check_names


def read_sheet(path: Path, hints: ColumnHints, show: Callable[[float], None]) -> RawTable:
    """Return the cells of the sheet that csv.sheet names, or of the only one with values, without empty rows."""
    if importlib.util.find_spec("python_calamine") is None:
        raise DataError(
            f"{path}: a {path.suffix.lower()} file is read by python-calamine, which is not installed here: pip "
            "install 'fairbloom[excel]'",
            "no-extra",
        )
    import pyarrow as pa  # imported late: a server reads no tables

    lines: list[int] = []
    with rows_of(path, hints.sheets) as (sheet, number_of_rows, cells):
        texts = ((number, [to_text(cell, hints.decimal) for cell in row]) for number, row in cells)
        filled = ((number, row) for number, row in texts if any(row))
        at, first = next(filled, (1, []))
        names = {place: name for place, name in enumerate(first) if name}
        columns: dict[int, list[Values]] = {place: [] for place in names}
        while block := list(islice(filled, ROWS_AT_ONCE)):
            check_named(f"{where(path, sheet)}, row {at}", names, block)
            for place, column in columns.items():
                column.append(pa.array([row[place] for _, row in block], pa.string()))
            lines += [number for number, _ in block]
            show(lines[-1] / number_of_rows)
    source = Source(path, np.array(lines, np.int64), unit="row", sheet=sheet, header=at)
    check_names(source, [*names.values()])
    return RawTable(source, [*names.values()], [pa.chunked_array(each, pa.string()) for each in columns.values()])


def check_named(header: str, names: Collection[int], rows: Sequence[tuple[int, Sequence[str]]]) -> None:
    """Raise DataError where one of the numbered rows has a value in a column that has no name."""
    for number, row in rows:
        place = next((place for place, text in enumerate(row) if text and place not in names), None)
        if place is not None:
            raise DataError(
                f"{header}: column {letters(place)} has no name, and row {number} has a value in it: the first row "
                "that holds something must name the columns: name this one, or remove what is no part of the table",
                "unnamed-column",
                column=place + 1,
            )


def to_text(cell: str | float | bool, decimal: Decimal) -> str:
    """Return a cell as a CSV file would have it."""
    if isinstance(cell, str):
        return cell.strip()
    return str(cell) if isinstance(cell, bool) else format_number(cell, decimal)


def letters(place: int) -> str:
    """Return what a spreadsheet calls the column of this place, counted from 0: A, Z, AA."""
    name = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


@contextmanager
def rows_of(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, int, Iterator[tuple[int, list[Any]]]]]:
    """Yield the name of the sheet that is read, its number of rows, and its rows with their numbers."""
    limit = 2**30 + 200 * path.stat().st_size  # bytes of memory that a workbook may take before it is refused
    program = Path(__file__).with_name("workbook.py")
    command = [sys.executable, "-P", str(program), str(path.absolute()), str(limit), *wanted]
    silent = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=silent, stdout=subprocess.PIPE, stderr=silent, text=True) as process:  # noqa: S603
        assert process.stdout is not None  # noqa: S101 (as it was asked for)
        try:
            found = json.loads(process.stdout.readline() or "{}")
            if "sheet" not in found:
                raise _refusal(path, found, wanted, limit)
            yield found["sheet"], found["rows"], enumerate(map(json.loads, process.stdout), start=1)
            if process.wait():
                raise _refusal(path, {}, wanted, limit)
        finally:
            process.kill()


def _refusal(path: Path, found: dict[str, Any], wanted: Sequence[str], limit: int) -> DataError:
    """Return the error of a workbook of which no sheet can be read."""
    if not found:
        return DataError(
            f"{path} cannot be read: it is damaged, or needs more than {limit / 2**30:.1f} GiB of memory, as a stray "
            "value in the last row or column of a sheet does: delete the rows and columns around the table, or save it "
            "as CSV UTF-8",
            "too-large",
        )
    if "error" in found:
        return DataError(
            f"{path} cannot be read as a {path.suffix.lower()} file ({found['error']}): save it again, without a "
            "password",
            "no-table",
        )
    sheets = found["sheets"]
    if found["filled"]:
        names = join_names([repr(name) for name in sheets])
        return DataError(
            f"{path} has {len(sheets)} sheets that hold values, {names}: name the one to read by "
            f"csv.sheet={sheets[0]}, or remove the others",
            "several-sheets",
            sheets=len(sheets),
        )
    if not wanted:
        return DataError(f"{path} is empty: none of its sheets that are shown holds a value", "no-sheet")
    hint = did_you_mean(wanted[0], sheets)
    return DataError(
        f"csv.sheet = {','.join(wanted)!r}: {path} has no such sheet that holds values; {hint}its sheets are "
        f"{join_names(sheets)}",
        "no-sheet",
    )

"""Workbooks: the cells of the one sheet that holds values, as calamine reads them."""

import importlib.util
import re
import zlib
from functools import reduce
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from ...schema import Decimal, File
from ..reasons import DataError
from ..targets import join_names
from .numbers import format_number
from .table import RawTable, Source

MAX_SHEET_CELLS = 20_000_000
"""The cells between the first and the last one of a sheet, all of which calamine holds in memory."""

MAX_UNPACKED = 2**30
"""The bytes that a workbook may unpack to."""

REFERENCE = re.compile(rb"""\br=["']([A-Z]{1,3})([0-9]{1,7})["']""", re.IGNORECASE)
"""Where a cell stands, as in r="B7"."""


def read_workbook(path: Path, file: File) -> RawTable:
    """Return the cells of the only visible sheet that holds values, without empty rows, as the texts of a CSV file."""
    if importlib.util.find_spec("python_calamine") is None:
        raise DataError(
            f"{path}: an .xlsx file is read by python-calamine, which is not installed here: pip install "
            "'fairbloom[excel]'",
            "no-extra",
        )
    import pyarrow as pa  # imported late: a server reads no tables

    check_extent(path)
    sheet, cells = read_cells(path)
    texts = [[to_text(cell, file.decimalChar or ".") for cell in row] for row in cells]
    (at, first), *rows = [(number, row) for number, row in enumerate(texts, start=1) if any(row)] or [(1, [])]
    source = Source(path, np.array([number for number, _ in rows], np.int64), unit="row", sheet=sheet, header=at)
    names = {place: name for place, name in enumerate(first) if name}
    for number, row in rows:
        unnamed = next((place for place, text in enumerate(row) if text and place not in names), None)
        if unnamed is not None:
            raise DataError(
                f"{source.names_at}: column {letters(unnamed)} has no name, and row {number} has a value in it: the "
                "first row that holds something must name the columns: name this one, or remove what is no part of "
                "the table",
                "unnamed-column",
                column=unnamed + 1,
            )
    columns = [pa.chunked_array([[row[place] for _, row in rows]], pa.string()) for place in names]
    return RawTable(source, [*names.values()], columns)


def check_extent(path: Path) -> None:
    """Raise DataError where a workbook needs too much memory: a stray last cell stands for billions of empty ones."""
    try:
        with ZipFile(path) as archive:
            if sum(each.file_size for each in archive.infolist()) > MAX_UNPACKED:
                raise _too_large(path, f"it unpacks to more than {MAX_UNPACKED:,} bytes")
            for name in archive.namelist():
                if name.startswith("xl/worksheets/") and name.endswith(".xml"):
                    rows, columns = find_extent(archive.read(name))
                    if rows * columns > MAX_SHEET_CELLS:
                        raise _too_large(path, f"a sheet has values as far as row {rows:,} and column {columns:,}")
    except (BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise _unreadable(path, error) from error


def find_extent(xml: bytes) -> tuple[int, int]:
    """Return the number of the last row and of the last column that a sheet has a cell in."""
    rows, columns = set(), set()
    for cell in REFERENCE.finditer(xml):
        columns.add(cell[1].upper())
        rows.add(cell[2])
    last = max(columns, key=lambda each: (len(each), each), default=b"")
    return max(map(int, rows), default=0), reduce(lambda number, letter: 26 * number + letter - 64, last, 0)


def read_cells(path: Path) -> tuple[str, list[list[Any]]]:
    """Return the name of the only visible sheet that holds values, and its rows."""
    from python_calamine import CalamineError, SheetTypeEnum, SheetVisibleEnum, load_workbook

    try:
        with load_workbook(path) as workbook:
            shown = [
                workbook.get_sheet_by_name(sheet.name)
                for sheet in workbook.sheets_metadata
                if sheet.typ == SheetTypeEnum.WorkSheet and sheet.visible == SheetVisibleEnum.Visible
            ]
            rows = {sheet.name: [*sheet.iter_rows()] for sheet in shown}
    except (CalamineError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    filled = {name: cells for name, cells in rows.items() if any(cell != "" for row in cells for cell in row)}
    if not filled:
        raise DataError(f"{path} is empty: none of its sheets that are shown holds a value", "empty")
    if len(filled) > 1:
        raise DataError(
            f"{path} has {len(filled)} sheets that hold values, {join_names([*map(repr, filled)])}: remove or hide all "
            "but one, or save that one as .csv",
            "several-sheets",
            sheets=len(filled),
        )
    return next(iter(filled.items()))


def to_text(cell: Any, decimal: Decimal) -> str:
    """Return a cell as a CSV file would have it."""
    is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
    return format_number(cell, decimal) if is_number else str(cell).strip()


def letters(place: int) -> str:
    """Return what a spreadsheet calls the column of this place, counted from 0: A, Z, AA."""
    return (letters(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def _too_large(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} cannot be read: {why}: delete the rows and columns around the table, or save it as .csv", "too-large"
    )


def _unreadable(path: Path, error: Exception) -> DataError:
    why = f"{type(error).__name__}: {error}"
    return DataError(f"{path} cannot be read as an .xlsx file ({why}): save it again, without a password", "no-table")

"""Writes the cells of a sheet as JSON, a row a line. This is a program: a damaged workbook may end its process.

The library that reads workbooks reserves memory for all cells between the first and the last one: a stray cell in the
last row and column of a sheet stands for 17 billion of them, which ends the process that asks for so much. So this
one has a limit of its own. It imports nothing of fairbloom, which takes a second to load.

Arguments: the file, the limit of memory in bytes, and the names of sheets of which one is to be read, if any is named.
The first line is what was found, as an object: `sheet`, the name of the one that is read; else `sheets`, the names of
those that hold values, or of all where none of them does, or none is of a given name; else `error`.
"""

import json
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def main(path: str, limit: int, wanted: Sequence[str]) -> None:
    """Write what was found, and the rows of the sheet."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):  # not every system has such a limit
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    from python_calamine import CalamineError, SheetTypeEnum, SheetVisibleEnum, load_workbook

    try:
        with load_workbook(path) as workbook:
            there = [
                sheet.name
                for sheet in workbook.sheets_metadata
                if sheet.typ == SheetTypeEnum.WorkSheet and sheet.visible == SheetVisibleEnum.Visible
            ]
            chosen = [name for name in there if name in wanted] if wanted else there
            sheets = {name: workbook.get_sheet_by_name(name) for name in chosen}
            filled = [
                name for name, sheet in sheets.items() if any(cell != "" for row in sheet.iter_rows() for cell in row)
            ]
            if len(filled) != 1:
                write({"sheets": filled or there, "filled": len(filled)})
                return
            write({"sheet": filled[0], "rows": sheets[filled[0]].total_height})
            for row in sheets[filled[0]].iter_rows():
                write([cell if isinstance(cell, str | float | bool) else str(cell) for cell in row])
    except (CalamineError, OSError, ValueError) as error:
        write({"error": f"{type(error).__name__}: {error}"})


def write(what: Any) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])

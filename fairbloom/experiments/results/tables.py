"""The tables of a run folder as data frames."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbloom.server.run_folder.csv_rows import WORDS
from fairbloom.server.run_folder.errors import explain_read_errors
from fairbloom.server.run_folder.files import TableFile, is_finished
from fairbloom.server.run_folder.tables import unescape_formula
from fairbloom.text import text_if

if TYPE_CHECKING:
    import pandas
    import pyarrow


# Larger numbers of a file have no measures, because their squares are not finite, and no place in a
# chart: they are shown as missing.
LARGEST_SHOWN = 1e100


def is_shown(value: float) -> bool:
    """Return whether a number of a file is finite, and small enough to be shown."""
    return abs(value) <= LARGEST_SHOWN


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of numbers of a file, which may be infinite."""
    with np.errstate(all="ignore"):
        return float(np.mean([*values]))


def read_frame(file: TableFile, folder: Path, *, optional: bool = False) -> "pandas.DataFrame":
    """Return a table of a run folder; an empty cell is NaN, or "" in a column of text.

    In an unfinished run a torn last line is left out, and the file may be missing, as an `optional`
    one may be in any run, which gives no rows. Raise RunFolderError if the file cannot be read, is
    malformed or, in a finished run, is incomplete.
    """
    path = file.path_in(folder)
    finished = is_finished(folder)
    or_again = text_if(finished, ", or run again with another folder (--out)")
    with explain_read_errors(path, f"Restore it from a copy{or_again}"):
        missing = (optional or not finished) and not path.exists()
        content = b"" if missing else path.read_bytes()
        if finished and not missing and not content.endswith(b"\n"):
            raise ValueError("its last line is torn")
        return _to_frame(
            _parse(content[: content.rfind(b"\n") + 1], file.needed, finished=finished)
        )


def _parse(content: bytes, needed: Sequence[str], *, finished: bool) -> "pyarrow.Table":
    """Return the columns of a CSV file.

    Raise ValueError if a line of a finished table has more or fewer cells than the first.
    """
    import pyarrow.csv  # imported late, as are pandas' data frames: few commands need them

    if not content:
        return pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in needed})

    table = pyarrow.csv.read_csv(
        pyarrow.BufferReader(content),
        # a single block, so that a type is inferred from the whole column
        pyarrow.csv.ReadOptions(block_size=len(content) + 1, use_threads=False),
        pyarrow.csv.ParseOptions(
            newlines_in_values=True,
            # the last line of a table that is being written may end early
            invalid_row_handler=lambda line: (
                "error" if finished or line.actual_columns > line.expected_columns else "skip"
            ),
        ),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(WORDS, pyarrow.string()), null_values=[""]
        ),
    )
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"its column {twice[0]} is there twice")
    if lacking := [name for name in needed if name not in names]:
        raise ValueError(f"its first line has no column {lacking[0]}")
    if len(table) and not pyarrow.types.is_integer(table["round"].type):
        raise ValueError(
            "it is not a table of rounds: its column round has other cells than whole numbers"
        )
    return table


def _to_frame(table: "pyarrow.Table") -> "pandas.DataFrame":
    """Return a data frame with numbers in all columns except texts.

    Raise ValueError if a cell is not a number.
    """
    import pandas
    import pyarrow

    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in WORDS:
            columns[name] = column.to_pandas()
            if columns[name].str.startswith("'").any():
                columns[name] = columns[name].map(unescape_formula, na_action="ignore")
        elif pyarrow.types.is_null(column.type) or not len(column):
            columns[name] = np.full(len(column), np.nan)
        elif pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type):
            columns[name] = column.to_numpy()
        else:
            cells = column.cast(pyarrow.string()).to_pandas().dropna()
            wrong = cells[pandas.to_numeric(cells, errors="coerce").isna()]
            raise ValueError(
                f"its column {name} has {next(iter(wrong), cells.iloc[0])!r}, which is not a number"
            )
    return pandas.DataFrame(columns)

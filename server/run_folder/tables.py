"""Tables as CSV files: read, cut back, and extended round by round."""

import csv
import io
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fairbloom.system.files import write_whole
from fairbloom.text import text_if

from .errors import explain_read_errors

# A row of a table as it is written: the text of each cell, by column.
Cells = dict[str, str]

# The beginning of a cell that a spreadsheet might compute, or of one that was escaped for this
# reason: clients and groups may have any name.
FORMULA = re.compile(r"'*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")


def read_table(path: Path, columns: Collection[str], *, finished: bool) -> list[Cells]:
    """Return a table's rows; an unfinished run's last line may be torn, or its file missing.

    Raise RunFolderError if the file cannot be read or is not a table; and, for a finished run, if
    it is missing, torn, or without one of `columns`.
    """
    again = text_if(finished, ", or run again with another folder (--out)")
    rows: list[Cells] = []
    with explain_read_errors(path, f"Restore it from a copy{again}"):
        if not finished and not path.exists():
            return rows
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if finished and whole != content:
            raise ValueError("its last line is torn")
        with _csv_reader(whole, strict=finished) as reader:
            header = list(reader.fieldnames or ())
            if twice := [name for name in header if header.count(name) > 1]:
                raise ValueError(f"its column {twice[0]} is there twice")
            if finished and (missing := [column for column in columns if column not in header]):
                raise ValueError(f"it has no column {missing[0]}")
            for row in reader:
                torn = None in row.values()
                if None in row or (finished and torn):
                    raise ValueError(
                        f"line {reader.line_num} has more or fewer cells than the first"
                    )
                if not torn and not row.get("round", "").isdecimal():
                    raise ValueError(f"the round in line {reader.line_num} is {row.get('round')!r}")
                if not torn:
                    rows.append({column: unescape_formula(cell) for column, cell in row.items()})
    return rows


def format_csv(columns: tuple[str, ...], rows: Iterable[Mapping[str, object]]) -> str:
    """Return a table, its columns and its rows, as CSV text with Unix line ends."""
    return format_rows([columns, *([row.get(column, "") for column in columns] for row in rows)])


def format_rows(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells as CSV text with Unix line ends; None is an empty cell."""
    lines: list[str] = []
    # Python's csv quotes a cell with \r only if \r is a part of the line end.
    writer = csv.writer(_Sink(lambda line: lines.append(f"{line[:-2]}\n")), lineterminator="\r\n")
    writer.writerows(
        [escape_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return "".join(lines)


def format_cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return format_rows([[text]])[:-1]


class _Sink(NamedTuple):
    """The file object to which Python's csv writes lines."""

    write: Callable[[str], None]


def escape_formula(cell: object) -> object:
    """Return a cell that no spreadsheet computes: formulas get an apostrophe in front."""
    if not isinstance(cell, str) or not FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def unescape_formula(cell: str) -> str:
    """Return a cell as it was before `escape_formula`."""
    return cell[1:] if cell[:1] == "'" and FORMULA.match(cell) else cell


class TableWriter:
    """A table of an ongoing run; `size` is how many bytes it has."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path = path
        self.columns = columns
        self._header = format_csv(columns, []).encode()
        self.size = len(self._header)

    def begin(self) -> None:
        """Write the file anew, without rows."""
        write_whole(self.path, self._header)
        self.size = len(self._header)

    def cut_back(self, size: int) -> None:
        """Drop all but the first `size` bytes.

        Raise RunFolderError if these are not whole rows of this table.
        """
        with (
            explain_read_errors(self.path, "Restore it from a copy"),
            self.path.open("r+b") as file,
        ):
            header = file.read(len(self._header))
            file.seek(size - 1)
            if header != self._header or file.read(1) != b"\n":
                raise ValueError("it is not as it was at the last checkpoint")
            file.truncate(size)
        self.size = size

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Append rows, given by their cells: all of them or, if the disk is full, none."""
        self.add_lines(format_rows(rows))

    def add_lines(self, lines: str) -> None:
        """Append rows that are already formatted, in the way of `add`."""
        content = left = lines.encode()
        with self.path.open("r+b", buffering=0) as file:
            try:
                file.seek(self.size)
                while left:
                    left = left[file.write(left) :]
            except BaseException:
                file.truncate(self.size)
                raise
        self.size += len(content)


@contextmanager
def _csv_reader(content: bytes, *, strict: bool = False) -> Iterator["csv.DictReader[str]"]:
    """Yield a reader of cells of any length: reasons of refusals may exceed csv's limit.

    The limit belongs to the whole process, in which clients may read their files: it is restored.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield csv.DictReader(io.StringIO(content.decode(), newline=""), strict=strict)
    finally:
        csv.field_size_limit(limit)

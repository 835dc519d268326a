"""Tables as CSV files: read whole or as far as they are written, begun, cut back, and added to round by round."""

import csv
import io
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fairbloom.system.files import write_whole

from ..checkpoint import KEPT
from .errors import explain_read_errors

Cells = dict[str, str]
"""A row of a table as it is written: the text of each cell, by column."""

FORMULA = re.compile(r"'*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""How a cell begins that a spreadsheet may compute, or one that was escaped: clients and groups may have any name."""

BEGUN = "Restore what is missing from a copy, or move the table away to begin a new one"
"""What can be done about a table of a run that goes on, where it cannot be read."""


def read_table(path: Path, columns: Collection[str], *, finished: bool) -> list[Cells]:
    """Return a table's rows; an unfinished run's last line may be torn, or its file missing.

    RunFolderError: the file cannot be read or is something else; or, of a finished run, is missing, torn, or lacks one
    of `columns`.
    """
    return _read_whole(path, columns) if finished else _read_begun(path)


def _read_whole(path: Path, columns: Collection[str]) -> list[Cells]:
    with explain_read_errors(path, "Restore it from a copy, or run again with another folder (--out)"):
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            raise ValueError("its last line is torn")
        header, rows = _parse(content)
        if lacking := [column for column in columns if column not in header]:
            raise ValueError(f"it has no column {lacking[0]}")
        return rows


def _read_begun(path: Path) -> list[Cells]:
    with explain_read_errors(path, "Restore it from a copy"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return []
        with _csv_reader(_drop_torn_line(content)) as reader:
            _check_header(reader.fieldnames or ())
            rows = [_unescape(row) for row in reader if None not in row.values()]
        if any(None in row for row in rows):
            raise ValueError("a line has more cells than the first")
        if rows and not all(row.get("round", "").isdecimal() for row in rows):
            raise ValueError("it is no table of rounds")
        return rows


def format_csv(columns: tuple[str, ...], rows: Iterable[Mapping[str, object]], *, header: bool = False) -> str:
    """Return rows as CSV text with Unix line ends."""
    cells = ([row.get(column, "") for column in columns] for row in rows)
    return _format_rows([columns, *cells] if header else cells)


def _format_rows(rows: Iterable[Iterable[object]]) -> str:
    lines: list[str] = []
    # The library quotes a cell with \r only where \r is a part of the line end.
    writer = csv.writer(_Sink(lambda line: lines.append(f"{line[:-2]}\n")), lineterminator="\r\n")
    writer.writerows([escape_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return "".join(lines)


def format_cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return _format_rows([[text]])[:-1]


class _Sink(NamedTuple):
    """What the library writes lines to."""

    write: Callable[[str], None]


def escape_formula(cell: object) -> object:
    """Return a cell that no spreadsheet computes: a text that looks like a formula begins with an apostrophe then."""
    if not isinstance(cell, str) or not FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _unescape(row: Cells) -> Cells:
    escaped = {column for column, cell in row.items() if cell and cell[:1] == "'" and FORMULA.match(cell)}
    return {column: cell[1:] if column in escaped else cell for column, cell in row.items()} if escaped else row


class TableWriter:
    """A table of an ongoing run: rows wait in memory until they are written."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.path = path
        self.columns = columns
        self._size = 0
        self._waiting: list[str] = []

    def cut_back(self, last: int, furthest: float) -> None:
        """Start the file, or rewrite it with the rows up to round `last`, 0 for none; later rows may be torn."""
        kept = [row for row in self._read(last, furthest) if last and int(row["round"]) <= last]
        content = format_csv(self.columns, kept, header=True).encode()
        write_whole(self.path, content)
        self._size, self._waiting = len(content), []

    def _read(self, last: int, furthest: float) -> list[Cells]:
        """Return the rows, which may be torn after round `last`; raise if they go beyond round `furthest`."""
        with explain_read_errors(self.path, BEGUN):
            header, rows = _parse_begun(self.path, last)
            if unknown := [column for column in header if column not in self.columns]:
                raise ValueError(f"its column {unknown[0]} is none of this run's")
            recorded = max((int(row["round"]) for row in rows), default=0)
            if recorded > furthest:
                raise ValueError(f"it goes up to round {recorded}, while the last checkpoint is of round {last}")
        return rows

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Let rows wait, given by their cells."""
        self._waiting.append(_format_rows(rows))

    def add_lines(self, lines: str) -> None:
        """Let rows wait that are formatted already."""
        self._waiting.append(lines)

    def write(self) -> None:
        """Write all waiting rows or, if the disk refuses, none; can be called again after an interruption."""
        if content := "".join(self._waiting).encode():
            _write_at(self.path, self._size, content)
            self._size, self._waiting = self._size + len(content), []


def find_furthest_round(path: Path, last: int, shared_seconds: float) -> int:
    """Return the last round that tables may have by rounds.csv: KEPT checkpoints after that of round `last`.

    By the rounds' seconds: a checkpoint covers `shared_seconds` of rounds.
    """
    furthest, passed, seconds = last + KEPT, 0, 0.0
    with explain_read_errors(path, BEGUN):
        for row in _parse_begun(path, last)[1]:
            if int(row["round"]) <= last:
                continue
            if passed == KEPT:
                break
            furthest = max(furthest, int(row["round"]))
            seconds += float(row.get("seconds") or 0.0)
            if seconds >= shared_seconds:
                passed, seconds = passed + 1, 0.0
    return furthest


def _parse_begun(path: Path, last: int) -> tuple[list[str], list[Cells]]:
    """Return header and rows of a table whose rows after round `last` may be torn; empty if there is no file yet."""
    return _parse(_drop_torn_line(path.read_bytes()), last) if path.exists() else ([], [])


def _drop_torn_line(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(content: bytes, last: float = math.inf) -> tuple[list[str], list[Cells]]:
    """Return header and rows; ValueError or csv.Error if this is no table of rounds, or torn up to round `last`."""
    # Rows after round `last` may end within quotes, which the library takes for torn where it is strict.
    with _csv_reader(content, strict=last == math.inf) as reader:
        header, rows = _check_header(reader.fieldnames or ()), []
        if "round" not in header:
            raise ValueError("its first line has no column round")
        for row in reader:
            if not (row["round"] or "").isdecimal():
                raise ValueError(f"the round in line {reader.line_num} is {row['round']!r}")
            if int(row["round"]) <= last and (None in row or None in row.values()):
                raise ValueError(f"line {reader.line_num} has more or fewer cells than the first")
            rows.append(_unescape(row))
    return header, rows


def _check_header(names: Sequence[str]) -> list[str]:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"its column {twice[0]} is there twice")
    return list(names)


@contextmanager
def _csv_reader(content: bytes, *, strict: bool = False) -> Iterator["csv.DictReader[str]"]:
    """Yield a reader of cells of any length: the reasons of many refused clients may exceed the limit.

    The limit is the whole process's, in which clients may read their files, so it is restored.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield csv.DictReader(io.StringIO(content.decode(), newline=""), strict=strict)
    finally:
        csv.field_size_limit(limit)


def _write_at(path: Path, size: int, content: bytes) -> None:
    """Write to a file's end, which is at `size`: all of it or, where the disk does not take it, nothing."""
    with path.open("r+b", buffering=0) as file:
        try:
            file.seek(size)
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise

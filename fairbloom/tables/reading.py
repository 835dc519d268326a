"""Read tables from files: CSV and Parquet by pyarrow, workbooks by calamine.

An error names the file, the line and the remedy.
"""

import csv
import importlib.util
import posixpath
import re
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO, StringIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple
from xml.etree.ElementTree import Element, ParseError, iterparse
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import install_command
from fairbloom.logs import log_once
from fairbloom.system.files import MARKS
from fairbloom.system.machine import half_of_memory
from fairbloom.text import plural, text_if

from .cells import format_number, parse_number, shorten, to_array
from .charsets import find_likeliest
from .folders import REMEDY
from .reasons import MAX_FAULTS, DataError, KnownReason, raise_faults
from .schema import MAX_TEXT, Decimal, SchemaFile, fold, normalise

# A column of pyarrow: a ChunkedArray of texts, or of numbers if the file's columns have types.
Values = Any

# A column's name, or None for the whole file, and what a person should look at.
Remark = tuple[str | None, str]

# The remedy for a text in another encoding; the braces take what to state, and the file's name.
STATE = "state {} under [files.{!r}] in the schema, or save it in UTF-8 (in Excel: CSV UTF-8)"

# The remedy for notes above the names of the columns; the braces take their row and the file's key.
HEADER = (
    "if a note is above the names of the columns, state headerRows = [{}] under [files.{!r}] in the"
    " schema"
)

# The first bytes of files of these formats, for any file name.
STARTS = {
    b"PAR1": ".parquet",
    b"PK\x03\x04": ".xlsx",
    b"\x1f\x8b": ".gz",
    b"\xd0\xcf\x11\xe0": ".xls",
}

# Bytes of a row: pyarrow parses as many at a time.
MAX_ROW = 2**20

# Cells between the first and the last one of a sheet: calamine holds all of them in memory.
MAX_SHEET_CELLS = 20_000_000

# Bytes of an unpacked workbook.
MAX_UNPACKED = 2**30

# The remedy for a workbook that is too large.
SHRINK = "delete the rows and columns around the table, or save it as .csv"

# The position of a cell in a sheet, as in r="B7".
CELL_REFERENCE = re.compile(r"([A-Z]{1,3})([0-9]{1,7})", re.IGNORECASE)

# Bytes of a workbook's XML that are parsed at once. Where a tag or comment is larger, expat before
# 2.6 reads it again with each part, so that small parts of a hostile file take hours.
XML_CHUNK_BYTES = 2**20

# Elements inside each other; a workbook has about ten.
MAX_XML_DEPTH = 100

# Elements in one that are all in memory: formats of cells, of which Excel has at most 65,490.
MAX_ELEMENTS = 100_000

# Merged cells of a sheet; each has two rows at least.
MAX_MERGED = 1_000_000

# Texts and fillers in a format of numbers; and the formats of every workbook that show per cent.
FORMAT_TEXTS = re.compile(r"""[\\_*].|".*?\"""")
PER_CENT_FORMATS = frozenset({"9", "10"})

# A number with a decimal point.
POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+([eE][+-]?[0-9]+)?")

# A number with a decimal comma, unless its commas can separate thousands.
COMMA = re.compile(r"(?![+-]?[0-9]{1,3}(,[0-9]{3})+$)[+-]?[0-9]*,[0-9]+")

# What is said of a column with merged cells.
MERGED = "cells of it are merged with those below them: the value is read in each of these rows"

# The attribute of a hidden row or column.
TRUE = ("1", "true")

LINE_END, QUOTE = b'\n"'


@dataclass(frozen=True, eq=False)
class ReadTable:
    """A file's columns by name; None for a column that holds neither numbers nor texts.

    `lines` has the line in which each row ends (`unit` "line"), or the row of a sheet or the number
    of a record ("row"), from 1. `file` describes how the file is written. `remarks` are
    what a person should look at. `start` is the place of its first row
    among the rows of its client.
    """

    path: Path
    columns: dict[str, Values | None]
    lines: NDArray[np.int64]
    unit: Literal["line", "row"] = "line"
    file: SchemaFile = field(default_factory=SchemaFile)
    remarks: Sequence[Remark] = ()
    start: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    @property
    def decimal(self) -> Decimal:
        """The decimal mark of its numbers."""
        return self.file.decimalChar or "."

    @cached_property
    def by_name(self) -> dict[str, str]:
        """The columns' names by their folded forms, which are compared."""
        return {fold(name): name for name in self.columns}

    def find(self, name: str) -> Values:
        """Return a column by its name, upper or lower case; None if missing or not usable."""
        return self.columns.get(self.by_name.get(fold(name), ""))

    def own_names(self, name: str) -> list[str]:
        """Return the client's names of a column of the schema that the table has, as it has.

        A table with none of them may have the schema's own name, unless it means another column.
        """
        folded = dict.fromkeys(map(fold, self.file.names_of(name)))
        found = [self.by_name[each] for each in folded if each in self.by_name]
        if not found and fold(name) in self.by_name and fold(name) not in self._stated_names:
            return [self.by_name[fold(name)]]
        return found

    @cached_property
    def _stated_names(self) -> set[str]:
        """The client's own names of all columns, in folded form."""
        stated: set[str] = set()
        for about in self.file.fields.values():
            stated.update(map(fold, about.name))
        return stated

    def column_name(self, name: str) -> str:
        """Return the table's name of a column of the schema, or its client's first one."""
        return next(iter(self.own_names(name)), self.file.names_of(name)[0])

    def show_cell(self, name: str, row: int) -> str:
        """Return a cell as an error shows it; `name` is the column's name in the schema."""
        if (value := self.find(self.column_name(name))[row].as_py()) is None:
            return ""
        return shorten(format_number(value) if isinstance(value, float) else str(value))

    def take(self, rows: NDArray[np.intp]) -> "ReadTable":
        """Return the rows of the client in `rows` that it has."""
        places = rows - self.start
        own = places[(places >= 0) & (places < len(self))]
        return replace(
            self,
            columns={
                name: None if values is None else values.take(own)
                for name, values in self.columns.items()
            },
            lines=self.lines[own],
        )


class CellError(DataError):
    """A fault of cells of a table, or of a whole column if `rows` is None.

    Attributes
    ----------
    file, line
        The position of the first such cell: the line in the file, 0 for a whole column.
    rows
        All rows of the client's files with this fault, counted from 0, ascending.
    column, value
        The column's name, in the schema if it has one, and the cell's content.
    problem, remedy
        The fault, and how to correct it.
    """

    def __init__(
        self,
        table: ReadTable,
        column: str,
        problem: str,
        remedy: str,
        why: str,
        at: NDArray[np.intp] | None = None,
        **values: int,
    ) -> None:
        self.file = table.path.name
        self.rows = None if at is None else at + table.start
        self.column = column
        self.problem = problem
        self.remedy = remedy
        self.line = 0
        self.value = ""
        cell = ""
        if at is not None:
            first = int(at[0])
            self.line = int(table.lines[first])
            self.value = table.show_cell(column, first)
            cell = f", {table.unit} {self.line}, column {column!r} holds {self.value!r},"
        super().__init__(
            f"{table.path}{cell} {problem}: {remedy}",
            why,
            position=KnownReason(f"{table.unit} {self.line}"),
            column=KnownReason(repr(column)),
            **values,
        )


def read(path: Path, file: SchemaFile) -> ReadTable:
    """Return the table of a file, by its ending."""
    readers = {".parquet": _read_parquet, ".xlsx": _read_workbook}
    ending = path.suffix.lower()
    try:
        before = path.stat()
        with path.open("rb") as content:
            start = content.read(4)
        found = next((kind for begin, kind in STARTS.items() if start.startswith(begin)), "")
        if found != text_if(ending in readers, ending):
            begins = f"begins like {found}" if found else "does not begin like one"
            raise DataError(f"{path} is no {ending} file: it {begins}: {REMEDY}", "other-format")
        table = readers.get(ending, _read_text)(path, file)
        after = path.stat()
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise DataError(
                f"{path} changed while it was read: wait until whatever writes it is done", "torn"
            )
        return _check_rows(table)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "unreadable") from error


def _check_rows(table: ReadTable) -> ReadTable:
    """Return a table without rows that repeat the names; remark them, and rows of one value."""
    from pyarrow import compute, types  # imported late: a server reads no tables

    texts = {
        name: values
        for name, values in table.columns.items()
        if values is not None and types.is_string(values.type)
    }
    if len(texts) < len(table.columns):
        return table
    name, *others = texts
    begins = compute.utf8_lower(compute.utf8_trim_whitespace(texts[name]))
    repeated = [
        row
        for row in np.flatnonzero(to_array(compute.equal(begins, name.lower()))).tolist()
        if all(fold(values[row].as_py()) == fold(name) for name, values in texts.items())
    ]
    is_note = to_array(compute.not_equal(texts[name], "")) & (len(others) > 1)
    for other in others:
        is_note &= to_array(compute.equal(texts[other], ""))
    found = {
        "repeats the names of the columns, and is left out": repeated,
        "has only a first value: if it is a note, delete it": np.flatnonzero(is_note).tolist(),
    }
    remarks: list[Remark] = []
    for problem, rows in found.items():
        if rows:
            several = text_if(rows[1:], f", one of {len(rows)} such {table.unit}s,")
            remarks.append((None, f"{table.unit} {table.lines[rows[0]]}{several} {problem}"))
    kept = table.take(np.setdiff1d(np.arange(len(table)), repeated)) if repeated else table
    return replace(kept, remarks=[*table.remarks, *remarks])


def columns_by_name(
    path: Path, names: Sequence[str], columns: Sequence[Values | None]
) -> dict[str, Values | None]:
    """Return columns by their names; raise DataError if one has no name, or two have the same."""
    seen: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        if not normalise(name):
            raise DataError(
                f"{path}: column {place} has no name: give it one (pandas: to_csv(…, index=False)"
                " leaves the row numbers out), or if a note is above the names, state headerRows in"
                " the schema",
                "unnamed-column",
                column=place,
            )
        if len(name) > MAX_TEXT:
            raise DataError(
                f"{path}: the name of column {place} has {len(name)} characters: shorten it",
                "long-name",
                column=place,
                characters=len(name),
            )
        if (other := seen.setdefault(fold(name), place)) != place:
            raise DataError(
                f"{path}: columns {other} and {place} are both called {name!r}, in any case of"
                " letters: rename or remove one",
                "same-column",
                column=other,
                other=place,
            )
    return dict(zip(names, columns, strict=True))


# CSV ----------------------------------------------------------------------------------------------


def _read_text(path: Path, file: SchemaFile) -> ReadTable:
    content, encoding, remarks = _read_content(path, file)
    # Lines that are not read become blank ones, so that the others keep their numbers.
    if (
        above := file.headerRows[0] - 1
    ):  # each step over the content takes a part of the time of reading
        content = b"\n".join([b""] * above + content.split(b"\n", above)[above:])
    if file.commentChar:
        content = re.sub(
            rb"^%b.*" % re.escape(file.commentChar.encode()), b"", content, flags=re.MULTILINE
        )
    end, lines = _find_rows(content)
    if not len(lines):
        raise DataError(f"{path} is empty: its first line must name the columns", "empty")
    first = content[:end].decode().lstrip("\n")
    outside = re.sub(r'"[^"]*"', "", first)
    delimiter: str = file.delimiter or max(",;\t|", key=outside.count)
    if not file.delimiter and delimiter not in outside:
        raise DataError(
            f"{path}, line {lines[0]} names one column only, {first.strip()[:60]!r}: separate"
            f" columns by comma, semicolon, tab or |; {HEADER.format(lines[0] + 1, file.key)}",
            "one-column",
        )
    if b'"' in content and (b'" ' in content or b' "' in content):
        # Spaces between quotation marks and separators: a, "b" is a,"b". Quoted values match first.
        around = re.escape(delimiter.encode())
        spaces = rb'("[^"]*")|(?<![^%b\n]) +(?=")|(?<=") +(?=[%b\n]|\Z)' % (around, around)
        content = re.sub(spaces, rb"\1", content)
        end, lines = _find_rows(content)
        first = content[:end].decode().lstrip("\n")
    if b'="' in content:
        content = _read_formulas(content, delimiter)
        end, lines = _find_rows(content)
        first = content[:end].decode().lstrip("\n")
    _check_quotes(path, content, delimiter)
    header = next(csv.reader(StringIO(first, newline=""), delimiter=delimiter))
    names = [name.strip() for name in header]
    file = file.model_copy(update={"delimiter": delimiter, "encoding": encoding})
    try:
        columns = _parse_rows(path, content, end + 1, file, len(names), lines)
    except DataError:
        columns = _parse_beside_row_names(path, content[end + 1 :], file, len(names), lines)
        if not columns:
            raise
        remarks.append(
            (None, "each row begins with a name of its own, as R writes it, which is not read")
        )
    file = file.model_copy(
        update={"decimalChar": file.decimalChar or _infer_decimal(file, columns)}
    )
    return ReadTable(
        path, columns_by_name(path, names, columns), lines[1:], file=file, remarks=remarks
    )


def _infer_decimal(file: SchemaFile, columns: Sequence[Values]) -> Decimal:
    """Return the decimal mark: the one that does not separate thousands, or else by the cells."""
    if file.groupChar == ".":
        return ","
    if file.groupChar == ",":
        return "."
    cells = [cell.strip() for values in columns for cell in values.slice(0, 1000).to_pylist()]
    return "," if any(map(COMMA.fullmatch, cells)) and not any(map(POINT.fullmatch, cells)) else "."


def _read_content(path: Path, file: SchemaFile) -> tuple[bytes, str, list[Remark]]:
    """Return a text in UTF-8 with lines that end in LF, the file's encoding, and remarks on it."""
    content = path.read_bytes()
    encoding = file.encoding
    remarks: list[Remark] = []
    if not content.isascii() or b"\0" in content:
        text, encoding, remarks = _decode(path, content, file)
        content = text.encode(errors="replace")
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content, encoding, remarks


def _decode(path: Path, content: bytes, file: SchemaFile) -> tuple[str, str, list[Remark]]:
    """Return a file's text, its encoding, and a remark if that is neither marked nor stated.

    It is the encoding of the byte order mark, or else UTF-8, or else the stated one, or else the
    likeliest.
    """
    marked = next((name for mark, name in MARKS.items() if content.startswith(mark)), "")
    has_zeros = not marked and b"\0" in content
    encodings = ["utf-8", file.encoding]
    if marked or has_zeros:  # UTF-8 would read zero bytes as characters
        encodings = [marked or file.encoding]
    line = 0
    for encoding in encodings:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
        else:
            has_zeros = "\0" in text
            if not has_zeros:
                return text, encoding, []
    remedy = STATE.format("another encoding", file.key)
    if has_zeros:
        raise DataError(
            f"{path}: it has zero bytes: it is in UTF-16 without a mark, as utf-16-le, or no text:"
            f" {remedy}",
            "utf-16",
        )
    problem = f"cannot be read as {encodings[-1]}"
    if not marked and "encoding" not in file.model_fields_set:
        found = find_likeliest(content)
        shown = [f"{name!r} ({', '.join(map(shorten, words[:2]))})" for name, _, words in found]
        if len(found) == 1:
            remark = f"it is not UTF-8, and read as {shown[0]}: if that is wrong, {remedy}"
            log_once("%s: %s", path.name, remark)
            return found[0][1], found[0][0], [(None, remark)]
        problem = "is not UTF-8, and its encoding cannot be told"
        named = f"encoding = {' or '.join(shown)}" if shown else "its encoding"
        remedy = STATE.format(named, file.key)
    raise DataError(f"{path}: line {line} {problem}: {remedy}", "not-utf-8", line=line)


def _find_rows(content: bytes) -> tuple[int, NDArray[np.int64]]:
    """Return where the first row ends, and the line in which each row ends, from 1.

    Blank rows are left out. A line that ends within quotation marks does not end a row.
    """
    text = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(text == LINE_END)
    if not content.endswith(b"\n"):
        ends = np.append(ends, len(text))
    lines = np.arange(1, len(ends) + 1)
    if b'"' in content:
        outside = np.searchsorted(np.flatnonzero(text == QUOTE), ends) % 2 == 0
        ends = ends[outside]
        lines = lines[outside]
    filled = np.diff(ends, prepend=-1) > 1
    first_end = int(ends[filled][0]) if filled.any() else 0
    return first_end, lines[filled]


def _read_formulas(content: bytes, delimiter: str) -> bytes:
    """Return a text in which ="000017" is "000017": systems write it so that Excel keeps the zeros.

    A value in quotation marks may be such a formula, too, with its own marks doubled.
    """
    ends = re.escape(delimiter.encode())
    # Other quoted values match before a formula within them does.
    pattern = (
        rb'(?P<opens>")=""(?P<doubled>[^"\n]*)""(?P<closes>")(?=[%b\n]|\Z)'
        rb'|(?P<other>"[^"]*+(?:""[^"]*+)*+")'
        rb'|(?<![^%b\n])=(?P<plain>"[^"\n]*")(?=[%b\n]|\Z)'
    ) % (ends, ends, ends)
    kept = rb"\g<opens>\g<doubled>\g<closes>\g<other>\g<plain>"
    return re.sub(pattern, kept, content)


def _check_quotes(path: Path, content: bytes, delimiter: str) -> None:
    """Raise DataError if a quotation mark neither opens, closes nor is doubled in a value."""
    ends = re.escape(delimiter.encode())
    # It begins with a mark alone, which is searched for ten times as fast.
    pattern = rb'"(?:(?<![^%b\n]")[^"]*+(?:""[^"]*+)*+"(?![^%b\n])|(?P<wrong>))' % (ends, ends)
    wrong = next(
        (found for found in re.finditer(pattern, content) if found["wrong"] is not None), None
    )
    if wrong:
        line = content.count(b"\n", 0, wrong.start()) + 1
        raise DataError(
            f"{path}, line {line} cannot be read: it has a quotation mark that is not closed, or"
            " one too many: within quotation marks write it twice",
            "quotes",
            line=line,
        )


def _parse_beside_row_names(
    path: Path, rows: bytes, file: SchemaFile, width: int, lines: NDArray[np.int64]
) -> list[Values]:
    """Return the columns after the rows' own names; [] if not each row begins with one.

    Such names are all different, and all numbers or all texts.
    """
    try:
        first, *others = _parse_rows(path, rows, 0, file, width + 1, lines)
    except DataError:  # rows of other lengths, which are a fault
        return []
    cells = first.to_pylist()
    kinds = {parse_number(cell) is None for cell in cells}
    is_filled = all(cells) and any(others[-1].to_pylist())  # a separator may end each row
    return others if is_filled and len(kinds) == 1 and len({*cells}) == len(cells) else []


def _parse_rows(
    path: Path, content: bytes, start: int, file: SchemaFile, width: int, lines: NDArray[np.int64]
) -> list[Values]:
    """Return the columns of the rows that begin at byte `start`.

    Raise DataError if a row has more or fewer values than `width`.
    """
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import csv as arrow_csv

    texts = dict.fromkeys(map(str, range(width)), pa.string())
    if len(lines) == 1:
        return [pa.chunked_array([[]], pa.string()) for _ in texts]
    faults: list[DataError] = []

    def note(row: Any) -> str:
        counts = {
            "line": int(lines[row.number]),
            "cells": row.actual_columns,
            "header": int(lines[0]),
            "columns": width,
        }
        message = (
            "line {line} has {cells} values, and line {header} names {columns} columns: add or"
            " remove values; one that holds the separator, as a decimal comma may be, needs quotes"
            " around it"
        )
        if row.number == 1:
            message += f"; {HEADER.format(counts['header'] + 1, file.key)}"
        faults.append(DataError(f"{path}, {message.format(**counts)}", "row-length", **counts))
        return "skip" if len(faults) < MAX_FAULTS else "error"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(content).slice(start)),
            # Threads would not number the rows.
            arrow_csv.ReadOptions(column_names=[*texts], block_size=MAX_ROW, use_threads=False),
            arrow_csv.ParseOptions(
                delimiter=file.delimiter,
                newlines_in_values=b'"' in content,
                invalid_row_handler=note,
            ),
            arrow_csv.ConvertOptions(column_types=texts, null_values=[], strings_can_be_null=False),
        )
    except pa.ArrowException as error:
        raise_faults(faults)
        raise DataError(
            f"{path} cannot be read ({error}): a row may have {MAX_ROW // 2**20} MiB: shorten it,"
            " or leave its longest column out"
        ) from error
    raise_faults(faults)
    if len(table) != len(lines) - 1:
        raise DataError(
            f"{path} has {len(lines) - 1} rows or {len(table)}, as one reads its quotation marks:"
            f" {REMEDY}"
        )
    return [*table.columns]


# Parquet ------------------------------------------------------------------------------------------


def _read_parquet(path: Path, file: SchemaFile) -> ReadTable:
    import pyarrow as pa  # imported late: a server reads no tables
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as content:
            kinds = content.schema_arrow
            rows = content.metadata.num_rows
            # A few bytes of a hostile file may stand for any number of rows, and the groups of its
            # rows may have more than it says. In memory, each cell has 8 bytes, and each line.
            row_bytes = 8 * (1 + len(kinds))
            sizes = [
                max(row_bytes * group.num_rows, group.total_byte_size)
                for group in map(content.metadata.row_group, range(content.num_row_groups))
            ]
            if max(row_bytes * rows, sum(sizes)) > half_of_memory():
                raise DataError(
                    f"{path} has {rows:,} rows of {len(kinds):,} columns, which may take more than"
                    f" half of the memory here ({half_of_memory() / 1e9:.1f} GB): take a part of"
                    " it, or leave out columns that the task does not need",
                    "too-large",
                )
            # pandas writes its index as such a column
            shown = [column for column in kinds if not column.name.startswith("__index_level_")]
            plain = [column.name for column in shown if _is_plain(column.type)]
            table = content.read(columns=plain, use_threads=False)
            columns = {
                name: _to_numbers_or_texts(table.column(name), file.decimalChar or ".")
                for name in plain
            }
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError, KeyError) as error:
        why = " ".join(str(error).split())[:200] or "it needs more memory than there is"
        raise DataError(
            f"{path} cannot be read as a .parquet file ({why}): write it again", "no-table"
        ) from error
    if plain and len(table) != rows:
        raise DataError(
            f"{path} has {len(table):,} rows, and says that it has {rows:,}: write it again",
            "no-table",
        )
    return ReadTable(
        path,
        columns_by_name(
            path,
            [column.name.strip() for column in shown],
            [columns.get(column.name) for column in shown],
        ),
        np.arange(1, rows + 1),
        "row",
        file,
    )


def _is_plain(kind: Any) -> bool:
    """Return whether a column holds numbers or texts: no lists, structures or bytes."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    are_plain = (
        types.is_primitive,
        types.is_null,
        types.is_decimal,
        types.is_string,
        types.is_large_string,
        types.is_string_view,
    )
    return any(is_kind(kind) for is_kind in are_plain)


def _to_numbers_or_texts(values: Values, decimal: Decimal) -> Values:
    """Return a column of numbers unchanged, and any other one as the texts of a CSV file."""
    from pyarrow import compute, string, types

    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if types.is_integer(kind) or types.is_floating(kind):
        return values
    texts = (
        compute.if_else(values, "True", "False")
        if types.is_boolean(kind)
        else values.cast(string())
    )
    if types.is_timestamp(kind):
        texts = compute.replace_substring_regex(texts, r"\.0+(Z?)$", r"\1")
    elif types.is_decimal(kind):
        texts = compute.replace_substring(texts, ".", decimal)
    return texts.fill_null("")


# Workbooks ----------------------------------------------------------------------------------------


def _read_workbook(path: Path, file: SchemaFile) -> ReadTable:
    """Return a sheet, or the only visible one that holds values, as a CSV file would have it.

    Empty rows are left out.
    """
    import pyarrow as pa  # imported late: a server reads no tables

    sheets = _open_workbook(path, file)
    _check_single_sheet(path, file, [*sheets])
    ((sheet_rows, start, about),) = sheets.values()
    decimal = file.decimalChar or "."

    def as_text(row: int, column: int, cell: Any) -> str:
        if isinstance(cell, int | float) and not isinstance(cell, bool):
            if (row, column) in about.per_cent:
                cell = float(f"{100 * cell:.12g}")  # as it is shown
            return format_number(cell, decimal)
        return str(cell).strip()

    texts: dict[int, list[str]] = {}
    for number, cells in enumerate(sheet_rows, start=1):
        row = [as_text(number, column, cell) for column, cell in enumerate(cells, start)]
        if any(row) and not (file.commentChar and row[0].startswith(file.commentChar)):
            texts[number] = row
    merged = _fill_merged(texts, start, about.merged, file.headerRows[0])
    (_, names), *rows = (each for each in texts.items() if each[0] >= file.headerRows[0])
    columns = [[row[place] for _, row in rows] for place in range(len(names))]
    kept = [place for place, cells in enumerate(columns) if names[place] or any(cells)]
    arrays = [pa.chunked_array([columns[place]], pa.string()) for place in kept]
    lines = np.array([number for number, _ in rows], np.int64)
    remarks: list[Remark] = [(names[place], MERGED) for place in kept if place in merged]
    remarks += [
        (names[place], "it is hidden in the sheet, and read: show it, or put it in ignore")
        for place in kept
        if any(place + start in group for group in about.hidden_columns)
    ]
    hidden = [number for number in lines.tolist() if number in about.hidden_rows]
    if hidden:
        are_hidden = plural(len(hidden), "1 row is", f"{len(hidden):,} rows are")
        remark = (
            f"{are_hidden} hidden in the sheet, and read, the first in row {hidden[0]}: show them,"
            " or delete them"
        )
        remarks.append((None, remark))
    by_name = columns_by_name(path, [names[place] for place in kept], arrays)
    return ReadTable(path, by_name, lines, "row", file, remarks)


def _fill_merged(
    texts: Mapping[int, list[str]], start: int, merged: Sequence["Merged"], header: int
) -> set[int]:
    """Write the text of merged cells, which the first of them has, into those below it.

    `texts` has the rows by number, from column `start`. Return the places of the cells that are
    filled below row `header`.
    """
    numbers = [*texts]
    places = set[int]()
    for column, first, last in merged:
        place = column - start
        text = texts[first][place] if first in texts and place < len(texts[first]) else ""
        below = numbers[bisect_right(numbers, first) : bisect_right(numbers, last)]
        for number in below if text else ():
            texts[number][place] = text
            if number > header:
                places.add(place)
    return places


class Merged(NamedTuple):
    """Cells that are merged into one: a column, the first if there are several, and rows."""

    column: int
    first: int
    last: int


class Sheet(NamedTuple):
    """The rows of a visible sheet, the number of their first column, and notes."""

    rows: Sequence[Sequence[Any]]
    start: int
    about: "SheetNotes"


def _open_workbook(path: Path, file: SchemaFile) -> dict[str, Sheet]:
    """Return the visible sheets that hold values, or the one that is stated, by name.

    Raise DataError if the workbook cannot be read, or a formula in it has no result.
    """
    if importlib.util.find_spec("python_calamine") is None:
        raise DataError(
            f"{path} is read by python-calamine: {install_command('excel')}", "no-extra"
        )
    from python_calamine import CalamineError, SheetTypeEnum, SheetVisibleEnum, load_workbook

    shown = (SheetTypeEnum.WorkSheet, SheetVisibleEnum.Visible)
    try:
        notes = _check_sheets(path)
        with load_workbook(path) as workbook:
            metadata = workbook.sheets_metadata
            names = [sheet.name for sheet in metadata if (sheet.typ, sheet.visible) == shown]
            if file.sheet:
                names = [name for name in names if name == file.sheet]
            opened = {name: workbook.get_sheet_by_name(name) for name in names}
            sheets = {name: [*sheet.iter_rows()] for name, sheet in opened.items()}
            # Rows begin with the sheet's first row, and cells with the first column that has some.
            starts = {name: (sheet.start or (0, 0))[1] + 1 for name, sheet in opened.items()}
    except (
        BadZipFile,
        CalamineError,
        OSError,
        EOFError,
        LookupError,
        ParseError,
        ValueError,
        RuntimeError,
        zlib.error,
    ) as error:
        raise DataError(
            f"{path} cannot be read as .xlsx ({type(error).__name__}: {error}): save it again,"
            " without a password",
            "no-table",
        ) from error
    notes_of = {
        sheet.name: sheet_notes for sheet, sheet_notes in zip(metadata, notes, strict=False)
    }
    found: dict[str, Sheet] = {}
    for name, rows in sheets.items():
        about = notes_of.get(name, SheetNotes())
        if about.uncomputed:
            raise DataError(
                f"{path}, sheet {name!r}, cell {about.uncomputed}: it has formulas without results:"
                " open and save it in a spreadsheet",
                "no-results",
            )
        if any(str(cell).strip() for cell in chain(*rows)):
            found[name] = Sheet(rows, starts[name], about)
    return found


def _check_single_sheet(path: Path, file: SchemaFile, sheets: Sequence[str]) -> None:
    """Raise DataError unless there is one sheet."""
    if not sheets:
        sheet = f"sheet {file.sheet!r}" if file.sheet else "sheet"
        raise DataError(f"{path} is empty: no visible {sheet} holds a value", "empty")
    if len(sheets) > 1:
        several = DataError(
            f"{path} has {len(sheets)} sheets that hold values, {', '.join(map(repr, sheets))}:"
            f" state one as sheet under [files.{file.key!r}] in the schema, or remove or hide all"
            " others",
            "several-sheets",
            sheets=len(sheets),
        )
        several.sheets = [*sheets]
        raise several


@dataclass
class SheetNotes:
    """What calamine does not tell of a sheet; its rows and columns are counted from 1.

    Attributes
    ----------
    uncomputed
        The first cell that has a formula without a result, or "".
    per_cent
        The (row, column) of each cell that is shown as per cent.
    hidden_rows, hidden_columns
        The numbers of the hidden ones, of columns a range for each group.
    merged
        The cells that are merged with others below them, by column; none overlap.
    """

    uncomputed: str = ""
    per_cent: set[tuple[int, int]] = field(default_factory=set)
    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: list[range] = field(default_factory=list)
    merged: list[Merged] = field(default_factory=list)


def _check_sheets(path: Path) -> list[SheetNotes]:
    """Return notes on each sheet, in the workbook's order.

    Raise DataError if a workbook needs too much memory.
    """
    with ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED:
            raise DataError(f"{path} unpacks to more than {MAX_UNPACKED:,} bytes: {SHRINK}")
        per_cent = _find_per_cent_formats(archive)
        found = {
            name: _read_notes(path, archive, name, per_cent)
            for name in archive.namelist()
            if name.startswith("xl/worksheets/") and name.endswith(".xml")
        }
        targets = {
            about.get("Id"): posixpath.join("/xl", about.get("Target", "")).removeprefix("/")
            for about in _find_elements(archive, "xl/_rels/workbook.xml.rels", "Relationships")
        }
        notes: list[SheetNotes] = []
        for about in _find_elements(archive, "xl/workbook.xml", "sheets"):
            keys = [key for name, key in about.items() if name.endswith("}id")]
            notes += [found.get(targets.get(key, ""), SheetNotes()) for key in keys]
        return notes


def _find_per_cent_formats(archive: ZipFile) -> set[str]:
    """Return the numbers of the formats of cells that show a number as per cent."""
    styles = "xl/styles.xml"
    if styles not in archive.namelist():
        return set()
    shown = PER_CENT_FORMATS.union(
        about.get("numFmtId", "")
        for about in _find_elements(archive, styles, "numFmts")
        if "%" in FORMAT_TEXTS.sub("", about.get("formatCode", ""))
    )
    return {
        str(place)
        for place, about in enumerate(_find_elements(archive, styles, "cellXfs"))
        if about.get("numFmtId") in shown
    }


def _find_elements(archive: ZipFile, file: str, parent: str) -> list[dict[str, str]]:
    """Return the attributes of the elements inside of those with a name."""
    found: list[dict[str, str]] = []
    for event, name, element in _parse_xml(archive, file, parent):
        if (event, name) == ("end", parent):
            found += [child.attrib for child in element]
    return found


def _read_notes(
    path: Path, archive: ZipFile, file: str, per_cent_formats: Collection[str]
) -> SheetNotes:
    """Return notes on a sheet, given the numbers of the formats that show per cent.

    Raise DataError if it is too large: a stray last cell stands for billions.
    """
    notes = SheetNotes()
    row = 0
    column = 0
    last_row = 0
    last_column = 0
    for event, name, element in _parse_xml(archive, file, "c"):
        match event, name:
            case "start", "col" if element.get("hidden") in TRUE:
                notes.hidden_columns.append(
                    range(int(element.attrib["min"]), int(element.attrib["max"]) + 1)
                )
            case "start", "row":
                row = int(element.get("r", row + 1))
                column = 0
                if element.get("hidden") in TRUE:
                    notes.hidden_rows.add(row)
            case "end", "mergeCell":
                corner, _, other = element.get("ref", "").partition(":")
                (first_column, first), (_, last) = _find_cell(corner), _find_cell(other or corner)
                if last > first:
                    notes.merged.append(Merged(first_column, first, last))
                if len(notes.merged) > MAX_MERGED:
                    raise ValueError(f"it has more than {MAX_MERGED:,} merged cells")
            case "end", "c":
                column += 1
                if reference := element.get("r"):
                    column, row = _find_cell(reference)
                last_row = max(row, last_row)
                last_column = max(column, last_column)
                if last_row * last_column > MAX_SHEET_CELLS:
                    raise DataError(
                        f"{path} has values as far as row {last_row:,} and column"
                        f" {last_column:,}: {SHRINK}"
                    )
                if element.get("s") in per_cent_formats:
                    notes.per_cent.add((row, column))
                texts = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
                # A text in "is" is a result, and so is an empty one of type "str".
                if (
                    "f" in texts
                    and "is" not in texts
                    and not texts.get("v", "").strip()
                    and element.get("t") != "str"
                ):
                    notes.uncomputed = notes.uncomputed or reference or f"{column} of row {row}"
    notes.merged.sort()
    for before, after in pairwise(notes.merged):
        if before.column == after.column and after.first <= before.last:
            raise ValueError(f"merged cells of column {after.column} overlap in row {after.first}")
    return notes


def _find_cell(reference: str) -> tuple[int, int]:
    """Return the column and the row of a cell as C7, from 1; raise ValueError for another text."""
    found = CELL_REFERENCE.fullmatch(reference)
    if found is None:
        raise ValueError(f"{shorten(reference)!r} is no cell")
    column = sum(
        26**place * (ord(letter) - ord("@"))  # A is 1, Z is 26, AA is 27
        for place, letter in enumerate(reversed(found[1].upper()))
    )
    return column, int(found[2])


def _parse_xml(archive: ZipFile, file: str, kept: str) -> Iterator[tuple[str, str, Element]]:
    """Yield "start" or "end" of each element of a workbook's file, its name and the element.

    An element that has ended is freed, or else with the one around it if that is called `kept`: a
    tree of a hostile file would take more memory than there is. A document type is refused: its
    entities expand a few bytes to millions, and no program writes one into a workbook.
    """
    content = archive.read(file)
    # Expat reads encodings that extend ASCII, and UTF-16, which adds zero bytes.
    if b"<!DOCTYPE" in content.replace(b"\0", b""):
        raise ValueError("it has a document type, which no workbook has")
    around = [Element("")]
    for event, element in iterparse(_InChunks(content), ("start", "end")):  # noqa: S314 (no entities)
        name = element.tag.rpartition("}")[2]
        if event == "start":
            around.append(element)
            if len(around) > MAX_XML_DEPTH + 1:
                raise ValueError(f"it has more than {MAX_XML_DEPTH} elements inside each other")
        else:
            around.pop()
            if around[-1].tag.rpartition("}")[2] != kept:
                del around[-1][:]
            elif len(around[-1]) > MAX_ELEMENTS:
                raise ValueError(f"it has more than {MAX_ELEMENTS:,} elements {name}")
        yield event, name, element


class _InChunks(BytesIO):
    """A file that is read in chunks of one size, whichever is asked for."""

    def read(self, _: int | None = None) -> bytes:
        return super().read(XML_CHUNK_BYTES)

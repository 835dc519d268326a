"""CSV files as pyarrow reads them: only plain ones, of which it makes to the bit what Python makes of them."""

import csv
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import MAX_NUMBER, Cells, CellsBuilder, CellsOfFile, Numbers
from .formats import UTF_8, Dialect, find_dialect, marked_encoding
from .numbers import MISSING, Decimal, is_missing, parse_number
from .reasons import DataError
from .table import ColumnHints, Source
from .text import check_names

MAX_LINE = csv.field_size_limit()
"""A longer line may hold a value that is too long for Python's reader."""

CHECKED, PARSED = 16 * 2**20, 4 * 2**20
"""So many bytes are checked, and parsed, at a time."""

LINE_END, CARRIAGE_RETURN, QUOTE = b'\n\r"'

BLANKS = tuple("".join(each) for blank in MISSING for each in product(*({c.lower(), c.upper()} for c in blank)))
"""Every spelling of a missing value."""


class SurpriseError(Exception):
    """Something in a file that pyarrow might read in another way than Python does."""


def read_by_arrow(path: Path, hints: ColumnHints, show: Callable[[float], None]) -> CellsOfFile | None:
    """Return the cells of a CSV file; None where pyarrow is not installed, or the file is not a plain one.

    Python's reader then reads it, and says what is wrong with it.

    Parameters
    ----------
    path
        The file.
    hints
        What the settings of the run say about its columns.
    show
        Called with the share of the file that has been read.
    """
    try:
        import pyarrow.csv  # noqa: F401 (imported late: it is an extra)
    except ImportError:
        return None
    try:
        dialect, rows = check_plain(path, hints.encoding)
        first = dialect.skipped + 2
        source = Source(path, np.arange(first, rows + first), header=first - 1)
        header = read_header(path, dialect)
        check_names(source, header)
        return CellsOfFile(source, header, read_columns(path, dialect, header, rows, hints, show))
    except (SurpriseError, DataError, OSError, UnicodeError):
        return None


# What a plain file is -------------------------------------------------------------------------------------------------


def check_plain(path: Path, given: str) -> tuple[Dialect, int]:
    """Return how a file holds its table, and its number of rows; `given` is its encoding where it is not in UTF-8.

    A plain file is in a known encoding, its lines end in the usual ways, none of them is blank or very long, and
    quotation marks stand around whole values that hold neither marks nor line ends.

    Raises
    ------
    SurpriseError, UnicodeError
        When pyarrow might read a line otherwise than Python.
    """
    with path.open("rb") as file:
        marked = marked_encoding(file.read(4))
    try:
        dialect = find_dialect(path, marked or UTF_8)
        lines = sum(check_chunk(chunk, dialect.delimiter) for chunk in chunks_of(path, dialect.encoding))
    except UnicodeDecodeError:
        if marked or given == "utf-8":
            raise
        dialect = find_dialect(path, given)
        lines = sum(check_chunk(chunk, dialect.delimiter) for chunk in chunks_of(path, given))
    return dialect, lines - 1 - dialect.skipped


def chunks_of(path: Path, encoding: str) -> Iterator[bytes]:
    """Yield some whole lines of a text at a time, in UTF-8 without a mark."""
    if encoding != UTF_8:
        with path.open(encoding=encoding, newline="\n") as text:
            while some := text.read(CHECKED):
                yield (some + text.readline()).encode()
        return
    with path.open("rb") as file:
        first = True
        while chunk := file.read(CHECKED):
            chunk += file.readline()
            yield chunk.removeprefix(BOM_UTF8) if first else chunk
            first = False


def check_chunk(chunk: bytes, delimiter: str) -> int:
    """Return the number of lines in some whole lines of a file; raise SurpriseError where they are not plain."""
    if not chunk.isascii():
        chunk.decode()
    if b"\0" in chunk or (b"\r" in chunk and chunk.count(b"\r") != chunk.count(b"\r\n")):
        raise SurpriseError("lines do not end in the usual ways, or the file is no text")
    text = np.frombuffer(chunk, np.uint8)
    ends = np.flatnonzero(text == LINE_END)
    if not chunk.endswith(b"\n"):
        ends = np.append(ends, len(text))
    lengths = np.diff(ends, prepend=-1)
    if lengths.min(initial=MAX_LINE) <= 1 or lengths.max(initial=0) > MAX_LINE:
        raise SurpriseError("a line is blank, or very long")
    if chunk.startswith(b"\r\n") or b"\n\r\n" in chunk:
        raise SurpriseError("a line is blank")
    if b'"' in chunk:
        check_quotes(text, ends, ord(delimiter))
    return len(ends)


def check_quotes(text: NDArray[np.uint8], ends: NDArray[np.intp], delimiter: int) -> None:
    """Raise SurpriseError unless quotation marks stand around whole values, without marks and line ends in them."""
    marks = np.flatnonzero(text == QUOTE)
    if len(marks) % 2:
        raise SurpriseError("a quotation mark is not closed")
    opening, closing = marks[::2], marks[1::2]
    before = np.where(opening == 0, LINE_END, text[opening - 1])
    after = np.where(closing == len(text) - 1, LINE_END, text[np.minimum(closing + 1, len(text) - 1)])
    whole = np.isin(before, (delimiter, LINE_END)) & np.isin(after, (delimiter, LINE_END, CARRIAGE_RETURN))
    if not whole.all() or (np.searchsorted(ends, opening) != np.searchsorted(ends, closing)).any():
        raise SurpriseError("quotation marks stand within a value, or around several lines")


# Its columns ----------------------------------------------------------------------------------------------------------


def read_header(path: Path, dialect: Dialect) -> list[str]:
    """Return the names of the columns of a plain file."""
    with path.open(encoding=dialect.encoding, newline="") as file:
        lines = islice(file, dialect.skipped, None)
        return [name.strip() for name in next(csv.reader(lines, delimiter=dialect.delimiter, strict=True))]


def read_columns(
    path: Path,
    dialect: Dialect,
    header: Sequence[str],
    rows: int,
    hints: ColumnHints,
    show: Callable[[float], None],
) -> list[Cells | Numbers]:
    """Return the columns of a plain file: `Numbers` where that is certain, else `Cells`.

    A column is taken for one of numbers until a block of rows holds something else. What was read of it before is not
    kept as texts, so that the few columns of this kind are read once more.

    Parameters
    ----------
    path, dialect, header, rows
        The file, how it holds its table, the names of its columns, and the number of its rows.
    hints
        What the settings of the run say about the columns.
    show
        Called with the share of the rows that has been read.
    """
    names = list(map(str, range(len(header))))
    found: dict[str, NumbersBuilder | CellsBuilder] = {
        place: CellsBuilder() if hints.keep_texts(name) or may_be_number(name) else NumbersBuilder(rows, hints.decimal)
        for place, name in zip(names, header, strict=True)
    }
    read, again = 0, []
    for block in read_blocks(path, dialect, names, names):
        is_first, read = not read, read + block.num_rows
        if read > rows:
            raise SurpriseError("it has changed meanwhile")
        for place in [name for name in names if name not in again]:
            column = found[place]
            if isinstance(column, NumbersBuilder):
                if column.add(block[place]):
                    continue
                found[place] = column = CellsBuilder()
                if not is_first:
                    again.append(place)
                    continue
            add_cells(column, block[place])
        show(read / rows)
    if again:
        for block in read_blocks(path, dialect, names, again):
            for place in again:
                column = found[place]
                assert isinstance(column, CellsBuilder)  # noqa: S101 (as it was made above)
                add_cells(column, block[place])
    columns = [found[name].build() for name in names]
    if any(len(column) != rows for column in columns):
        raise SurpriseError("it has changed meanwhile")
    return columns


def may_be_number(name: str) -> bool:
    """Return whether a column of numbers might hold its own name, which must not be overlooked."""
    return is_missing(name) or parse_number(name) is not None


def read_blocks(path: Path, dialect: Dialect, names: list[str], wanted: list[str]) -> Iterator[Any]:
    """Yield the rows of a plain file as record batches of texts; raise SurpriseError where rows differ in length."""
    from pyarrow import ArrowException, csv, string  # imported late: it is an extra

    try:
        yield from csv.open_csv(
            path,
            read_options=csv.ReadOptions(
                column_names=names,
                skip_rows=dialect.skipped + 1,
                block_size=PARSED,
                encoding="utf8" if dialect.encoding == UTF_8 else dialect.encoding,
            ),
            parse_options=csv.ParseOptions(delimiter=dialect.delimiter),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, string()),
                include_columns=wanted,
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except ArrowException as error:
        raise SurpriseError("it is no table") from error


def add_cells(column: CellsBuilder, texts: Any) -> None:
    """Add a block of texts to a column's cells."""
    coded = texts.dictionary_encode()
    codes: NDArray[np.int32] = np.asarray(np.from_dlpack(coded.indices), np.int32)
    column.add_coded([text.strip() for text in coded.dictionary.to_pylist()], codes)


class NumbersBuilder:
    """The numbers of a column, which are added block by block."""

    def __init__(self, rows: int, decimal: Decimal) -> None:
        self._numbers = np.empty(rows, np.float64)
        self._decimal: Decimal = decimal
        self._missing = np.zeros(rows, np.int8)
        self._blanks: dict[str, int] = {}
        self._filled = 0

    def add(self, texts: Any) -> bool:
        """Add a block of texts, and return True; False where they may be something else than numbers and blanks.

        What pyarrow takes for a finite number is the same one to Python, whose numbers are of some more spellings.
        """
        import pyarrow as pa  # imported late: it is an extra

        cell = texts[0].as_py().strip()
        if parse_number(cell, self._decimal) is None and not is_missing(cell):
            return False  # without a search for blanks
        if self._decimal == ",":
            import pyarrow.compute as pc

            if pc.any(pc.match_substring(texts, ".")).as_py():
                return False
            texts = pc.replace_substring(texts, ",", ".")
        block = slice(self._filled, self._filled + len(texts))
        numbers = self._numbers[block]
        try:
            numbers[:] = np.from_dlpack(texts.cast(pa.float64()))  # to_numpy would import pandas, if it is there
        except pa.ArrowInvalid:
            numbers[:] = np.nan
        if not _all_usable(numbers):
            try:
                missing = self._add_with_blanks(numbers, texts)
            except pa.ArrowInvalid:
                return False
            if not _all_usable(numbers[missing == 0]):
                return False
            self._missing[block] = missing
        self._filled = block.stop
        return True

    def _add_with_blanks(self, numbers: NDArray[np.float64], texts: Any) -> NDArray[np.int8]:
        """Write a block's numbers, and return which of the column's blanks each row has, counted from 1; else 0."""
        import pyarrow as pa
        import pyarrow.compute as pc

        trimmed = pc.ascii_trim_whitespace(texts)
        blank = pc.index_in(trimmed, value_set=pa.array(BLANKS))
        numbers[:] = pc.if_else(blank.is_valid(), "0", trimmed).cast(pa.float64()).to_numpy()
        spellings = blank.fill_null(-1).to_numpy()
        different, first = np.unique(spellings, return_index=True)
        for spelling in different[np.argsort(first)]:
            if spelling >= 0:
                self._blanks.setdefault(BLANKS[spelling], len(self._blanks) + 1)
        numbers[spellings >= 0] = np.nan
        missing: NDArray[np.int8] = np.array([self._blanks.get(blank, 0) for blank in BLANKS] + [0], np.int8)[spellings]
        return missing

    def build(self) -> Numbers:
        """Return all numbers."""
        return Numbers(self._numbers, tuple(self._blanks), self._missing)


def _all_usable(numbers: NDArray[np.float64]) -> bool:
    """Return whether all numbers are finite, and can be squared and summed."""
    return not len(numbers) or bool(numbers.min() >= -MAX_NUMBER and numbers.max() <= MAX_NUMBER)

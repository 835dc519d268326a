"""The formats of tables, by the endings of their names; the encoding of a text, and what separates its values."""

import codecs
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from fairbloom.errors import ReportableError

from ..reasons import DataError

COLUMNAR = (".parquet", ".feather")
"""The endings of tables that pyarrow reads."""

SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
"""The endings of tables that spreadsheet programs write."""

ENDINGS = (".csv", ".tsv", *COLUMNAR, *SPREADSHEETS)
"""The endings of all tables."""

PICTURES = (".png", ".jpg", ".jpeg")
"""The endings of images."""

DELIMITERS = (",", ";", "\t", "|")

STARTS = {b"PAR1": ".parquet", b"ARROW1": ".feather", b"PK\x03\x04": ".xlsx", b"\xd0\xcf\x11\xe0": ".xls"}
"""What files of these formats begin with, whatever their names end with."""

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""What texts in these encodings may begin with; the mark of UTF-32 begins like one of UTF-16."""


@dataclass(frozen=True)
class Dialect:
    """What separates the values of a line, and how many lines are above the header (one may state the separator)."""

    delimiter: str
    skipped: int = 0


def format_of(content: bytes) -> str:
    """Return the ending that files with this content usually have, "" where it is none of those we know."""
    return next((ending for start, ending in STARTS.items() if content.startswith(start)), "")


def marked_encoding(content: bytes) -> str:
    """Return the encoding that a text's first bytes state, "" where they state none."""
    return next((name for mark, name in MARKS.items() if content.startswith(mark)), "")


def encoding_named(encoding: str) -> str:
    """Return what Python calls an encoding, and "utf-8" for UTF-8 with or without a mark."""
    try:
        "a".encode(encoding)
        name = codecs.lookup(encoding).name
    except LookupError as error:
        raise ReportableError(
            f"csv.encoding = {encoding!r}: Python knows no such encoding of texts: write cp1252 for a file of Windows "
            "in Western Europe, latin-1, utf-16, or another name of Python's"
        ) from error
    return "utf-8" if name == "utf-8-sig" else name


def find_dialect(path: Path, content: bytes) -> Dialect:
    """Return how a text holds a table; raise DataError if no separator is found.

    Excel may state the separator in a first line: sep=;
    """
    lines = enumerate(map(bytes.decode, BytesIO(content)), start=1)
    number, first = next(((number, line) for number, line in lines if line.strip()), (0, ""))
    if stated := re.fullmatch(r'"?sep=(.)"?[,;]*', first.rstrip("\r\n"), re.IGNORECASE):
        return Dialect(stated[1], number)
    outside = re.sub(r'"[^"]*"', "", first)
    best = max(DELIMITERS, key=outside.count)
    if first and not outside.count(best):
        raise DataError(
            f"{path}, line 1 names one column only, {first.strip()[:60]!r}: columns are separated by comma, semicolon, "
            "tab or |",
            "one-column",
        )
    return Dialect(best)

"""Which first lines name columns, and which hold values: a row of a file without names must not be told as names."""

from collections.abc import Collection, Sequence

from .identities import is_date, is_email
from .numbers import DECIMAL_COMMA, is_missing, number
from .reasons import Heading

Label = int | Heading
"""What may be told of a column: its name, or its place counted from 1."""


def doubtful_place(header: Sequence[str], columns: Sequence[Sequence[str]], asked: Collection[str]) -> int | None:
    """Return the place, from 1, of the first name that looks like a value; None where all look like names.

    Parameters
    ----------
    header
        The names.
    columns
        The cells below each.
    asked
        Names that the run itself uses, in small letters: these may look like any value, as long as none is one.
    """
    for place, (name, cells) in enumerate(zip(header, columns, strict=True), start=1):
        if _recurs(name, cells) or (name.lower() not in asked and looks_like_value(name)):
            return place
    return None


def _recurs(name: str, cells: Sequence[str]) -> bool:
    """Return whether a column has its name as a value too, in any case of letters."""
    return any(len(cell) == len(name) and cell.lower() == name.lower() for cell in cells)


def looks_like_value(name: str) -> bool:
    """Return whether a name is rather a value: a number, a date, an address, several lines, or one that is missing."""
    is_number = number(name) is not None or DECIMAL_COMMA.fullmatch(name) is not None
    return is_number or is_missing(name) or is_date(name) or is_email(name) or not name.isprintable()


def labels_of(header: Sequence[str], doubtful: int | None, asked: Collection[str]) -> dict[str, Label]:
    """Return what may be told of each column: names that the run uses, and all of them where none is doubtful."""
    known = {name for name in header if doubtful is None or name.lower() in asked}
    return {name: Heading(name) if name in known else place for place, name in enumerate(header, start=1)}

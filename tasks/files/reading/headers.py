"""Which first lines name columns, and which hold values: a row of a file without names must not be sent as names."""

from collections.abc import Collection, Sequence

from ..reasons import Heading
from .identities import is_date, is_email
from .numbers import DECIMAL_COMMA, is_missing, parse_number

Label = int | Heading
"""What may be sent to the server of a column: its name, or its place counted from 1."""


def doubtful_place(header: Sequence[str], columns: Sequence[Sequence[str]], known: Collection[str]) -> int | None:
    """Return the place, from 1, of the first name that looks like a value; None where all look like names.

    `columns` has the cells below each name that could be names; `known` names, in small letters, may look like any
    value.
    """
    for place, (name, cells) in enumerate(zip(header, columns, strict=True), start=1):
        recurs = any(len(cell) == len(name) and cell.lower() == name.lower() for cell in cells)
        if recurs or (name.lower() not in known and looks_like_value(name)):
            return place
    return None


def looks_like_value(name: str) -> bool:
    """Return whether a name is rather a value: a number, a date, an address, several lines, or one that is missing."""
    is_number = parse_number(name) is not None or DECIMAL_COMMA.fullmatch(name) is not None
    return is_number or is_missing(name) or is_date(name) or is_email(name) or not name.isprintable()


def labels_of(header: Sequence[str], doubtful: int | None, known: Collection[str]) -> dict[str, Label]:
    """Return what the server may know of each column: a name that the run uses, or any name where none is doubtful."""
    shown = {name for name in header if doubtful is None or name.lower() in known}
    return {name: Heading(name) if name in shown else place for place, name in enumerate(header, start=1)}

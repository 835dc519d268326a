"""What a cell holds: a number, or the sign of a missing value."""

import re
from typing import Literal

Decimal = Literal[".", ","]
"""What stands between a number's whole part and its decimals in texts."""

MISSING = frozenset({"", "?", "na", "nan", "+nan", "-nan", "null", "n/a"})
"""What stands for a value that is missing, in any case of letters: all that Python reads as a NaN is among them."""

MISSING_WORDS = "empty, ?, NA, NaN, null or N/A"

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
DECIMAL_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+")


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def parse_number(cell: str, decimal: Decimal = ".") -> float | None:
    """Return the number that a cell holds, None where it holds none, or the other decimal mark."""
    if decimal == ",":
        if "." in cell:
            return None
        cell = cell.replace(",", ".")
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def format_number(value: float, decimal: Decimal = ".") -> str:
    """Return a number as a text: 1 for 1.0, so that it is class 1, and "" for NaN."""
    if value != value:
        return ""
    text = str(int(value)) if abs(value) < 2**53 and value == int(value) else repr(float(value))
    return text.replace(".", decimal)


def canonical(cell: str, decimal: Decimal) -> str:
    """Return the name of a category or class: 4.0 is 4, as is 4,0 where commas are decimal marks."""
    if decimal == "," and "," in cell and parse_number(cell, decimal) is not None:
        cell = cell.replace(",", ".")
    return cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell

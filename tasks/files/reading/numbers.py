"""Numbers as texts."""

import re

from ...schema import Decimal

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")


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


def canonical(cell: str, decimal: Decimal = ".") -> str:
    """Return the name of a category or class: 4.0 is 4, as is 4,0 where commas are decimal marks."""
    if decimal == "," and "," in cell and parse_number(cell, decimal) is not None:
        cell = cell.replace(",", ".")
    return cell.partition(".")[0] if WHOLE.fullmatch(cell) else cell

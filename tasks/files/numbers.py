"""What a cell holds: a number, or the sign of a missing value."""

import re

MISSING = frozenset({"", "?", "na", "nan", "+nan", "-nan", "null", "n/a"})
"""What stands for a value that is missing, in any case of letters: all that Python reads as a NaN is among them."""

MISSING_WORDS = "empty, ?, NA, NaN, null or N/A"

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")


def is_missing(cell: str) -> bool:
    """Return whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def parse_number(cell: str) -> float | None:
    """Return the number that a cell holds, None where it holds none."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None

"""Words of messages and pages that depend on a number, a condition or a list."""

import math
from collections.abc import Sequence

# The most decimals of a number; smaller ones than these show are written as powers of ten.
MAX_DECIMALS = 9

# The digits that tell any two numbers apart.
MOST_DIGITS = 17

# Numbers from here on are written as powers of ten.
HUGE = 1e15


def plural(count: int, one: str, many: str) -> str:
    """Return `one` for a count of one, `many` for any other."""
    return one if count == 1 else many


def text_if(condition: object, text: str) -> str:
    """Return a text if the condition is true, "" otherwise."""
    return text if condition else ""


def quote(value: object) -> str:
    """Return a value as a message shows it: a text, number, truth value or class, or else its type.

    What is passed by mistake may be a table, and its repr has the values of patients.
    """
    return repr(value) if isinstance(value, str | int | float | type | None) else kind_of(value)


def kind_of(value: object) -> str:
    """Return a value's type as text: "a pandas.DataFrame"."""
    kind = type(value)
    module = text_if(kind.__module__ != "builtins", f"{kind.__module__}.")
    return f"a {module}{kind.__qualname__}"


def three_digits(value: float, sign: str = "") -> str:
    """Return a number with three digits: "0.512", "19,600"; powers of ten if tiny or huge."""
    if 999.5 <= abs(value) < HUGE:
        return round_to(float(f"{value:.3g}"), 0, sign)
    return f"{value:{sign}.3g}"


def tell_apart(first: float, second: float) -> tuple[str, str]:
    """Return two numbers with as many digits as show that they differ, three at least."""
    shown = three_digits(first), three_digits(second)
    for digits in range(4, MOST_DIGITS + 1):
        if first == second or shown[0] != shown[1]:
            break
        shown = f"{first:.{digits}g}", f"{second:.{digits}g}"
    return shown


def decimals_showing(digits: int, value: float) -> int:
    """Return the decimals that show so many digits of a number; 0 has none."""
    return min(MAX_DECIMALS, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def round_to(value: float, decimals: int, sign: str = "") -> str:
    """Return a number with so many decimals; negative ones round tens, hundreds and so on.

    What rounds to zero has no minus. Five digits before the point have a comma.
    """
    rounded = round(value, decimals) + 0.0
    return f"{rounded:{sign}{text_if(abs(rounded) >= 1e4, ',')}.{max(0, decimals)}f}"


def join_first(names: Sequence[str], most: int = 12) -> str:
    """Return the first `most` names, joined for a sentence, and the number of others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + text_if(rest > 0, f" and {rest} more")

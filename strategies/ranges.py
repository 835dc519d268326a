"""Checks of parameters: each returns the one named value, or says which name, value and range are at odds."""

import math
from numbers import Integral, Real


def number(**named: object) -> tuple[str, float]:
    """Return the one name and its value; raise ValueError when it is no finite real number."""
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return name, float(value)


def finite(**named: object) -> float:
    """Return the one named value if it is a finite number."""
    return number(**named)[1]


def at_least(lowest: float, **named: object) -> float:
    """Return the one named value if it is finite and not below `lowest`."""
    name, value = number(**named)
    if value < lowest:
        raise ValueError(f"{name} must be at least {lowest:g}, got {value!r}")
    return value


def above(bound: float, **named: object) -> float:
    """Return the one named value if it is finite and greater than `bound`."""
    name, value = number(**named)
    if value <= bound:
        raise ValueError(f"{name} must be greater than {bound:g}, got {value!r}")
    return value


def within(interval: str, **named: object) -> float:
    """Return the one named value if it lies in `interval`, written as in mathematics: "[0, 1]", "(0, 1]", "[0, 1)"."""
    name, value = number(**named)
    low, high = (float(end) for end in interval[1:-1].split(","))
    above_low = value > low or (value == low and interval[0] == "[")
    below_high = value < high or (value == high and interval[-1] == "]")
    if not (above_low and below_high):
        raise ValueError(f"{name} must lie in {interval}, got {value!r}")
    return value


def whole(lowest: int, **named: object) -> int:
    """Return the one named value if it is an integer and not below `lowest`."""
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, Integral) or value < lowest:
        raise ValueError(f"{name} must be an integer of at least {lowest}, got {value!r}")
    return int(value)


def one_of(choices: tuple[str, ...], **named: object) -> str:
    """Return the one named value if it is among `choices`."""
    ((name, value),) = named.items()
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value

"""Ranges of parameters, and functions that check one named value and return it.

They raise ValueError with the name, the value and the range. A method's parameters are checked by
their annotations, as `share: Annotated[float, Range("(0, 1]")] = 0.5`. The functions are for values
that cannot be annotated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairbloom.protocol.conditions import Fault
from fairbloom.protocol.parameters import (
    Choices as Choices,
    Default as Default,
    Meaning as Meaning,
    NonNegative as NonNegative,
    OptionError,
    Pairs as Pairs,
    Parameter,
    Positive as Positive,
    Range as Range,
    parsed,
    split_pairs,
)
from fairbloom.text import quote


def within(interval: str, **named: object) -> float:
    """Return the one named value if it is in `interval`, such as "[0, 1]", "(0, 1]" or "[0, 1)"."""
    return float(_checked(named, float, Range(interval)))


def whole(lowest: int, **named: object) -> int:
    """Return the one named value if it is an integer of at least `lowest`."""
    return int(_checked(named, int, Range(f"[{lowest}, inf)")))


def one_of(choices: tuple[str, ...], **named: object) -> str:
    """Return the one named value if it is among `choices`."""
    return str(_checked(named, str, Choices(*choices)))


def names_in(**named: object) -> tuple[str, ...]:
    """Return the one named value, each name once, if it is a sequence of names, not a string."""
    ((name, value),) = named.items()
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(name and isinstance(name, str) for name in value)
    ):
        raise ValueError(f"{name} must be a list or tuple of names, got {quote(value)}")
    return tuple(dict.fromkeys(value))


def pairs_in(**named: object) -> dict[str, Any] | None:
    """Return the one named value if it is a mapping of names, or the text of one.

    None and "" give None.
    """
    ((name, value),) = named.items()
    if isinstance(value, str):
        try:
            return {**split_pairs(value, "name=value")} or None
        except ValueError as error:
            fault = Fault(name, value, "{setting} = {value!r}: {why}", {"why": str(error)})
            raise OptionError(fault) from error
    if not isinstance(value, Mapping | None):
        raise ValueError(
            f"{name} must be a mapping of names or the text of one, got {quote(value)}"
        )
    return None if value is None else dict(value)


def amounts_in(interval: str, **named: object) -> dict[str, float]:
    """Return the one named value if it maps names to numbers in `interval`, as for `within`.

    It may be a mapping or the text of one, as for `pairs_in`. None and "" give an empty mapping.
    """
    pairs = pairs_in(**named) or {}
    (name,) = named
    return {key: float(_entry(name, key, value, float, interval)) for key, value in pairs.items()}


def counts_in(**named: object) -> dict[str, int]:
    """Return the one named value if it maps names to whole numbers from 1 on, as `amounts_in`."""
    pairs = pairs_in(**named) or {}
    (name,) = named
    return {key: int(_entry(name, key, value, int, "[1, inf)")) for key, value in pairs.items()}


def _entry(name: str, key: str, value: Any, kind: type, interval: str) -> Any:
    """Return the number of one name in a mapping, which may be a text."""
    number = parsed(value) if isinstance(value, str) else value
    parameter = Parameter(name, kind, None, allowed=Range(interval))
    return parameter.checked(number, entry=f"[{key!r}]")


def _checked(named: dict[str, object], kind: type, allowed: Range | Choices | None) -> Any:
    ((name, value),) = named.items()
    return Parameter(name, kind, None, allowed=allowed).checked(value)

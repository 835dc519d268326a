"""Settings and options without an effect in a run: each is refused, with reason and remedy.

What an option needs is declared at the option, as `IdleIf`. What depends on more than one other
value is a line of a table where the run is checked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from .parameters import Value


@dataclass(frozen=True)
class IdleIf:
    """A mark of a setting that has no effect while another one, by its name, has this value.

    `reason` follows "has no effect" in the error.
    """

    other: str
    value: Value
    remedy: str
    reason: str = ""


def collect_marks(*declared: Any) -> tuple[tuple[str, IdleIf], ...]:
    """Return the marks in the annotations of classes, with the names that have them."""
    found: list[tuple[str, IdleIf]] = []
    for each in declared:
        for name, hint in get_type_hints(each, include_extras=True).items():
            found += [(name, mark) for mark in get_args(hint) if isinstance(mark, IdleIf)]
    return tuple(found)


def apply_marks(
    marks: Iterable[tuple[str, IdleIf]], values: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the marked settings that have no effect with these values, with reason and remedy."""
    return [
        (name, f"{mark.reason}: {mark.remedy}")
        for name, mark in marks
        if values[mark.other] == mark.value
    ]


def explain_without_effect(given: Mapping[str, str], idle: Iterable[tuple[str, str]]) -> str:
    """Return the error of the first given setting that has no effect, or "".

    `given` has the settings by name, as they are written in the error, and `idle` the names of
    those without effect, with the words that follow "has no effect".
    """
    return next((f"{given[name]} has no effect{why}" for name, why in idle if name in given), "")

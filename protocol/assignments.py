"""Settings that are several words: a function's arguments, and numbers by class."""

import re
from collections.abc import Mapping

from .parameters import Value, parsed

Argument = Value | tuple[Value, ...]
"""What a function may be called with by a setting: a number, a word, a flag, or several of them."""

_SCALAR = r"[\w.+-]{1,40}"
_ARGUMENT = rf"[A-Za-z_]\w{{0,60}}\s*=\s*(?:{_SCALAR}|\(\s*{_SCALAR}(?:\s*,\s*{_SCALAR})*\s*,?\s*\))"
ARGUMENTS = rf"\s*{_ARGUMENT}(?:(?:\s*,\s*|\s+){_ARGUMENT})*\s*"
"""Assignments with spaces or commas between: betas=(0.9,0.98) eps=1e-6. A value has no slash and no colon."""

_LABEL = r"[^=,/\\:~\x00-\x1f\x7f]{1,100}"
BALANCED = "balanced"
"""Class weights by each client's own training examples."""

CLASS_WEIGHTS = rf"{BALANCED}|{_LABEL}=[\d.eE+-]{{1,40}}(?:,{_LABEL}=[\d.eE+-]{{1,40}})*"
"""balanced, or weights by class with commas between: no=0.3,yes=1.7."""


def arguments(text: str) -> dict[str, Argument]:
    """Return what a text that matches ARGUMENTS assigns; raise ValueError where a name is assigned to twice."""
    found: dict[str, Argument] = {}
    for name, value in re.findall(rf"([A-Za-z_]\w*)\s*=\s*(\([^()]*\)|{_SCALAR})", text):
        if name in found:
            raise ValueError(f"{name} is given twice: give it once")
        parts = [parsed(part.strip()) for part in value.strip("()").split(",") if part.strip()]
        found[name] = tuple(parts) if value.startswith("(") else parsed(value)
    return found


def weights_by_class(text: str) -> Mapping[str, float]:
    """Return the weights by class of a text that matches CLASS_WEIGHTS and is not "balanced", each above 0."""
    found: dict[str, float] = {}
    for word in text.split(","):
        label, _, value = (part.strip() for part in word.partition("="))
        weight = parsed(value)
        if isinstance(weight, bool | str) or not 0.0 < weight < float("inf"):
            raise ValueError(f"{value!r} is no weight of class {label}: it must be a number above 0")
        if label in found:
            raise ValueError(f"class {label} has two weights: give it one")
        found[label] = float(weight)
    return found

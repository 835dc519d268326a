"""What tables and figures call methods, their variants and the values of parameters."""

import json
import re
from collections.abc import Mapping

from fairbloom.imports import is_import_string
from fairbloom.protocol.settings import Value
from fairbloom.strategies import METHODS, canonical
from fairbloom.strategies.torchjd import TORCHJD


def title(name: str) -> str:
    """Return a method's name in tables and figures: that of its class.

    Names that are neither among our methods nor import strings, as TorchJD's, stay as they are.
    """
    if canonical(name) in METHODS:
        return METHODS[canonical(name)].__name__
    return name.rpartition(":")[2] if is_import_string(name) and not name.startswith(TORCHJD) else name


def format_value(value: Value | None) -> str:
    """Return a parameter's value as a user writes it: 5 for 5.0, true for True."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def label_of(name: str, given: Mapping[str, Value]) -> str:
    """Return a name with parameters as tables have it: `QFedAvg (q=1)`."""
    words = ", ".join(f"{short_key(key)}={_quoted(format_value(value))}" for key, value in given.items())
    return f"{name} ({words})" if words else name


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w.+:/-]*", word) else json.dumps(word)


def short_key(key: str) -> str:
    """Return a parameter's name without that of its method."""
    return key.rpartition(".")[2]

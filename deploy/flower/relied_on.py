"""What is relied on of Flower's inside."""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any


def missing_names(names: Mapping[str, Iterable[str]]) -> list[str]:
    """Return which of Flower's names (module:attribute, with parameters) are not as they are relied on."""
    return [f"{name}({', '.join(parameters)})" for name, parameters in names.items() if not _is_there(name, parameters)]


def _is_there(name: str, parameters: Iterable[str]) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
        return set(parameters) <= set(inspect.signature(found).parameters) if parameters else callable(found)
    except (ImportError, AttributeError, ValueError):
        return False

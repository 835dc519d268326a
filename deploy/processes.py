"""Shared by a federation's processes: loading of the app, addresses, words for events."""

import importlib
import re
from collections.abc import Iterable
from typing import Any, TypeVar

App = TypeVar("App")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, an IPv6 address without its brackets.

    ValueError for anything else.
    """
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f"{address!r}: write it as HOST:PORT, example.org:9092 say")
    return host.removeprefix("[").removesuffix("]"), int(port)


def duration(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def first_names(names: Iterable[str]) -> str:
    """Return names with commas: the first ten, and how many more there are."""
    every = list(names)
    return ", ".join(every[:10]) + (f" and {len(every) - 10} more" if len(every) > 10 else "")


def load_app(app: str, kind: type[App], of: str) -> App:
    """Return the app of this kind that an import string, module:attribute, names.

    Raise ImportError if it is missing.

    `of` names the owner of the app in the error: "this client", or "this run".
    """
    module, _, path = app.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"app = {app!r} of {of} cannot be loaded: {error}") from error
    if not isinstance(found, kind):
        raise ImportError(
            f"app = {app!r} of {of} is of type {type(found).__name__}, no {kind.__name__}"
        )
    return found

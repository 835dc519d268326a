"""Find the address in the repository of each class and function of the reference."""

import inspect
import pkgutil
from pathlib import Path

import fairbloom
from fairbloom.errors import REPOSITORY

ROOT = Path(fairbloom.__file__).resolve().parents[1]


def source_link(domain: str, info: dict[str, str]) -> str | None:
    """Return the address of an entry's source, for sphinx.ext.linkcode; None for a constant."""
    name = info["fullname"]
    if info["module"]:
        name = f"{info['module']}:{name}"
    try:
        entry = pkgutil.resolve_name(name)
        if isinstance(entry, property):
            entry = entry.fget
        source = inspect.unwrap(entry)
        file = Path(inspect.getfile(source)).resolve().relative_to(ROOT)
        lines, first = inspect.getsourcelines(source)
    except (AttributeError, TypeError, ValueError, OSError):
        return None
    return f"{REPOSITORY}/blob/main/{file.as_posix()}#L{first}-L{first + len(lines) - 1}"

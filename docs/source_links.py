"""The address of each class and function of the reference in the repository."""

import inspect
import pkgutil
import tomllib
from pathlib import Path

import fairbloom

ROOT = Path(fairbloom.__file__).resolve().parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


def source_link(domain: str, info: dict[str, str]) -> str | None:
    """Return where the source of an entry is, for sphinx.ext.linkcode.

    None for a constant, which has none.
    """
    named = f"{info['module']}:{info['fullname']}" if info["module"] else info["fullname"]
    try:
        found = pkgutil.resolve_name(named)
        found = inspect.unwrap(found.fget if isinstance(found, property) else found)
        file = Path(inspect.getfile(found)).resolve().relative_to(ROOT)
        lines, first = inspect.getsourcelines(found)
    except (AttributeError, TypeError, ValueError, OSError):
        return None
    return f"{REPOSITORY}/blob/main/{file.as_posix()}#L{first}-L{first + len(lines) - 1}"

"""Objects that a user names by an import string, module:attribute."""

import importlib
import os
import re
import site
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError

IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_import_string(name: str) -> bool:
    """Return whether a name is written as module:attribute."""
    return IMPORT_STRING.fullmatch(name) is not None


_TRUSTED: ContextVar[Collection[str] | None] = ContextVar("trusted", default=None)
"""The modules that may be imported beside installed packages; None: any."""


@contextmanager
def only_trusted_imports(trust: Collection[str]) -> Iterator[None]:
    """Let import strings name nothing but installed packages and these modules, inside: importing runs their code.

    A run folder may come from others. Allowed are packages in site-packages, the modules in `trust` with all that is
    in them, and modules that this process has imported already.
    """
    token = _TRUSTED.set(trust)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def imported(what: str, name: str) -> Any:
    """Return the object that the import string `name`, the value of the setting `what`, names."""
    module, _, attribute = name.partition(":")
    here, trust = str(Path.cwd()), _TRUSTED.get()
    if trust is not None and not any(f"{module}.".startswith(f"{each}.") for each in trust):
        _check_installed(what, name)
    elif here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ReportableError(
                f"{what} = {name!r}: there is no module {error.name}, neither in {here} nor among the installed "
                "packages: change to the directory that contains it, or install it",
                f"{what} = {name!r}: there is no module {error.name} on this client: install it",
            ) from error
        raise FairbloomError(
            f"{what} = {name!r}: {module} imports {error.name}, which is not installed here: install it"
        ) from error
    except FairbloomError as error:
        raise FairbloomError(f"{what} = {name!r}: {module} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = ", ".join(each for each in vars(found) if not each.startswith("_")) or "nothing"
            raise FairbloomError(f"{what} = {name!r}: {module} has no {attribute}; it has {public}")
        found = getattr(found, part)
    return found


def _check_installed(what: str, name: str) -> None:
    """Raise FairbloomError unless an import string's module, if imported now, would come from site-packages."""
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    if top == __package__ or (module in sys.modules and top not in sys.stdlib_module_names):
        return
    installed = [os.path.normpath(each) for each in (*site.getsitepackages(), site.getusersitepackages())]
    for place in _find_sources(module):
        if not any(Path(place).is_relative_to(each) for each in installed):
            raise FairbloomError(
                f"{what} = {name!r}: the run's settings name the module {module}, which is no installed package"
                f"{place and f' (it is {place})'}, and importing it would run its code: if you trust it, say --trust "
                f"{top}, or in Python trust=[{top!r}]"
            )


def _find_sources(module: str) -> Iterator[str]:
    """Yield the file of each package around a module, then its own, as Python would import them; "" for none."""
    paths, parts = None, module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), paths)
        if spec is None or (spec.origin is None and depth == len(parts)):
            yield ""
            return
        if spec.origin is not None:  # a folder without __init__.py has no code
            yield os.path.normpath(Path.cwd() / spec.origin)  # not resolved: links in site-packages belong to it
        paths = spec.submodule_search_locations or []


def check_seen(key: str, name: str, by: str) -> None:
    """Raise FairbloomError when an import string names what a notebook or script defines, which `by` cannot see."""
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise FairbloomError(
            f"{key} = {name!r}: {by} do not see what a notebook or script defines: put it into a file, mine.py say, "
            f"and name it mine:{attribute}"
        )

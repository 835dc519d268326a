"""Objects that a user names by an import string, module:attribute."""

import importlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError, did_you_mean

# Held while a process imports one of the apps. Flower's simulation imports both at once, in two
# threads, and two threads that meet in a package may each get a module that is not finished.
IMPORTS = threading.Lock()

IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_import_string(name: str) -> bool:
    """Return whether a name is written as module:attribute."""
    return IMPORT_STRING.fullmatch(name) is not None


# Whether modules may be imported that this process has not imported already.
_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=True)


@contextmanager
def only_trusted_imports(trust: bool) -> Iterator[None]:
    """Inside, allow import strings only of modules already imported, unless trusted.

    A run folder may come from others, and importing its modules runs their code.
    """
    token = _TRUSTED.set(trust)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def imported(what: str, name: str) -> Any:
    """Return the object that the import string `name`, the value of the setting `what`, names."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    top = module.partition(".")[0]
    if not _TRUSTED.get():
        if top != __package__ and (module not in sys.modules or top in sys.stdlib_module_names):
            raise FairbloomError(
                f"{what} = {name!r}: the run's settings name the module {module}, and importing it"
                " would run its code: if you trust it, say --trust, or in Python trust=True"
            )
    elif sys.path[:1] != [
        here
    ]:  # an installed package of the same name, further to the front, would hide the user's
        sys.path[:] = [here, *(place for place in sys.path if place != here)]
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            near = ["torchvision", *(file.stem for file in Path(here).glob("*.py"))]
            raise ReportableError(
                f"{what} = {name!r}: there is no module {error.name}, neither in {here} nor among"
                f" the installed packages: {did_you_mean(error.name, near)}change to the directory"
                " that contains it, or install it",
                f"{what} = {name!r}: there is no module {error.name} on this client: install it",
            ) from error
        raise FairbloomError(
            f"{what} = {name!r}: {module} imports {error.name}, which is not installed here:"
            " install it"
        ) from error
    except FairbloomError as error:
        raise FairbloomError(f"{what} = {name!r}: {module} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = (
                ", ".join(each for each in vars(found) if not each.startswith("_")) or "nothing"
            )
            raise FairbloomError(f"{what} = {name!r}: {module} has no {attribute}; it has {public}")
        found = getattr(found, part)
    return found


def import_callable(what: str, name: str, must: str) -> Callable[..., Any]:
    """Return the function or class that an import string names; `must` says what it has to be."""
    found = imported(what, name)
    if not callable(found):
        raise FairbloomError(f"{what} = {name!r}: it is a {type(found).__name__}; {must}")
    return found  # type: ignore[no-any-return]


def check_seen(key: str, name: str, by: str) -> None:
    """Raise FairbloomError if an import string names a notebook's object, hidden from `by`."""
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise FairbloomError(
            f"{key} = {name!r}: {by} do not see what a notebook or script defines: put it into a"
            f" file, mine.py say, and name it mine:{attribute}"
        )

"""Objects that a user names by an import string, module:attribute."""

import hashlib
import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError, ReportableError

IMPORT_STRING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_import_string(name: str) -> bool:
    """Return whether a name is written as module:attribute."""
    return IMPORT_STRING.fullmatch(name) is not None


def imported(what: str, name: str) -> Any:
    """Return the object that an import string names; the current directory is looked in before installed packages.

    Parameters
    ----------
    what
        The setting that has this value; errors name it.
    name
        As in `my_package.my_module:thing`.

    Raises
    ------
    FairbloomError
        When there is no such module or attribute, or the module imports what is not installed. Whatever else the module
        raises keeps its traceback.
    """
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ReportableError(
                f"{what} = {name!r}: there is no module {error.name}, neither in {here} nor among the installed "
                "packages: go to the directory that it lies in, or install it",
                f"{what} = {name!r}: there is no module {error.name} on this client: install it",
            ) from error
        raise FairbloomError(
            f"{what} = {name!r}: {module} imports {error.name}, which is not installed here: install it"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = ", ".join(each for each in vars(found) if not each.startswith("_")) or "nothing"
            raise FairbloomError(f"{what} = {name!r}: {module} has no {attribute}; it has {public}")
        found = getattr(found, part)
    return found


def module_digests(modules: Iterable[str]) -> dict[str, str]:
    """Return a checksum of the file of each module that is loaded, by its name; one without a file is left out."""
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    there = {module: Path(file) for module, file in files.items() if file and Path(file).is_file()}
    return {module: hashlib.sha256(file.read_bytes()).hexdigest() for module, file in there.items()}


def modules_behind(name: str) -> tuple[str, ...]:
    """Return the modules that an import string's object may come from: its own, and those of the same package.

    They are the ones that are loaded; a name that is no import string has none.
    """
    if not is_import_string(name):
        return ()
    module = name.partition(":")[0]
    package = module.partition(".")[0]
    return tuple(sorted(each for each in [*sys.modules] if each == package or each.startswith(f"{package}.")))


def check_seen(key: str, name: str, by: str) -> None:
    """Raise FairbloomError when an import string names what a notebook or script defines, which others cannot see.

    `by` says who they are.
    """
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise FairbloomError(
            f"{key} = {name!r}: {by} do not see what a notebook or script defines: put it into a file, mine.py say, "
            f"and name it mine:{attribute}"
        )

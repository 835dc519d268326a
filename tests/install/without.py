"""Environments in which some of the installed packages cannot be imported, as if they were not there."""

import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FINDER = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def environment_of(asked: Iterable[str], folder: Path) -> str:
    """Write into a folder what makes a Python that has it on PYTHONPATH find nothing but these requirements.

    Their own requirements are found too, and the modules of Fairbloom and of the standard library.
    """
    there = {"fairbloom", *_closure(asked)}
    absent = {
        module
        for module, packages in packages_distributions().items()
        if not there & {canonicalize_name(package) for package in packages} and module not in sys.stdlib_module_names
    }
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(FINDER.format(absent=absent))
    return str(folder)


def _closure(asked: Iterable[str]) -> set[str]:
    """Return the names of packages that are asked for, and of all that these need here."""
    waiting, seen, names = [Requirement(line) for line in asked], set[str](), set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        names.add(canonicalize_name(requirement.name))
        for line in requires(requirement.name) or []:
            further = Requirement(line)
            extras = {"", *requirement.extras}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                further.marker = None
                waiting.append(further)
    return names

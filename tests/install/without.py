"""Environments in which some of the installed packages cannot be imported, as if they were not
there."""

import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.requirements import needed

FINDER = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def environment_of(asked: Iterable[str], folder: Path) -> str:
    """Write into a folder what makes a Python that has it on PYTHONPATH find nothing but these
    requirements.

    Their own requirements are found too, and the modules of Fairbloom and of the standard library.
    """
    there = {
        "fairbloom",
        *(canonicalize_name(each.name) for each in needed(map(Requirement, asked), {}, cuda=True)),
    }
    absent = {
        module
        for module, packages in packages_distributions().items()
        if not there & {canonicalize_name(package) for package in packages}
        and module not in sys.stdlib_module_names
    }
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(FINDER.format(absent=absent))
    return str(folder)

"""Environments in which some of the installed packages cannot be imported."""

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
    """Write a folder for PYTHONPATH that hides all packages except these requirements.

    The requirements of these packages can also be imported, as can Fairbloom and the standard
    library.
    """
    importable = {
        "fairbloom",
        *(canonicalize_name(each.name) for each in needed(map(Requirement, asked), {}, cuda=True)),
    }
    absent = {
        module
        for module, packages in packages_distributions().items()
        if not importable & {canonicalize_name(package) for package in packages}
        and module not in sys.stdlib_module_names
    }
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(FINDER.format(absent=absent))
    return str(folder)

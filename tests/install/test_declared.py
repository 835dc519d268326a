"""Imported libraries are declared: another library that needs one today may drop it."""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.checkout import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]

PACKAGES = ROOT / "fairbloom"

# The modules that a device and a server start with.
STARTS = {
    "client": ("cli.device", "deploy.fleet.client", "deploy.fleet.app_process", "client.app"),
    "server": ("cli.deploy", "deploy.fleet.daemon", "deploy.fleet.run_process", "server.app"),
}

# Extras for one feature each. The import happens in use, and its error names the extra.
OPTIONAL = ("ray", "excel", "torchjd", "onnx", "images", "vision")

# Functions that take the name of a module as a string.
LATE = ("import_module", "find_spec")


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules by their dotted names within the package."""
    folders = [path for path in PACKAGES.iterdir() if path.is_dir()]
    files = [*PACKAGES.glob("*.py"), *(path for room in folders for path in room.rglob("*.py"))]
    found = {}
    for path in files:
        parts = path.relative_to(PACKAGES).with_suffix("").parts
        if "template" in parts:  # a user's app
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def imports(name: str) -> Iterator[str]:
    """Yield the full names that a module imports, at its top or within functions."""
    path = modules()[name]
    package = ["fairbloom", *name.split(".")] if name else ["fairbloom"]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in LATE:
            named = node.args[0]
            if isinstance(named, ast.Constant) and not named.value.startswith("."):
                yield named.value


def ours(imported: str) -> Iterator[str]:
    """Yield the modules of Fairbloom that importing a name loads."""
    parts = imported.split(".")[1:]
    for count in range(1, len(parts) + 1):
        if (name := ".".join(parts[:count])) in modules():
            yield name


def reached(starts: Iterable[str]) -> set[str]:
    """Return all modules that these import, directly or indirectly."""
    found = set[str]()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for imported in imports(name):
                if imported.startswith("fairbloom."):
                    waiting += ours(imported)
    return found


def libraries(names: Iterable[str]) -> set[str]:
    """Return the distributions that these modules import."""
    # torchvision is in no lock, and need not be installed.
    providers = {"torchvision": ["torchvision"], **packages_distributions()}
    found = set[str]()
    for name in names:
        for imported in imports(name):
            top = imported.partition(".")[0]
            if top != "fairbloom" and top not in sys.stdlib_module_names:
                # Several distributions share `google`.
                found.add("protobuf" if top == "google" else canonicalize_name(providers[top][0]))
    return found


def declared(lines: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_a_bare_install_declares_exactly_its_imports() -> None:
    optional = set().union(*(declared(EXTRAS[extra]) for extra in OPTIONAL))
    imported = libraries(modules())
    bare = declared(PROJECT["dependencies"])
    assert imported - optional - {"ray"} <= bare
    assert bare <= imported


@pytest.mark.parametrize("extra", STARTS)
def test_an_extra_declares_the_imports_of_its_processes(extra: str) -> None:
    asked = declared(EXTRAS["client"]) | declared(EXTRAS[extra])
    optional = declared([*EXTRAS["torchjd"], *EXTRAS["vision"], *EXTRAS["excel"]])
    assert libraries(reached(STARTS[extra])) - optional <= asked
    assert declared(EXTRAS["client"]) <= declared(PROJECT["dependencies"]) | declared(
        EXTRAS["images"]
    )

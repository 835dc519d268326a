"""Digests of a user's code, so that a run notices a changed method or task."""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, reduce
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from fairbloom.imports import is_import_string


def digest_own_code(names: Iterable[str]) -> dict[str, str]:
    """Return the digest of each source file behind names, after its algorithm, by its module.

    Names that are no import strings have none.

    These are the modules that import strings name, the packages around them, and what they import
    from the same folder, inside functions as well. An installed package is a user's own where pip
    has installed it from a folder or file. Nothing is imported for this. What a notebook or script
    defines is known only by its own source.
    """
    found: dict[str, str] = {}
    for name in sorted({each for each in names if is_import_string(each)}):
        module, _, attribute = name.partition(":")
        if module == "__main__":
            # A notebook may not keep it.
            with suppress(AttributeError, OSError, TypeError):
                source = inspect.getsource(
                    reduce(getattr, attribute.split("."), sys.modules["__main__"])
                )
                found[name] = f"sha256 {sha256(source.encode()).hexdigest()}"
        else:
            found |= {
                each: f"sha256 {sha256(file.read_bytes()).hexdigest()}"
                for each, file in _find_files(module).items()
            }
    return found


def _find_files(module: str) -> dict[str, Path]:
    """Return the files of a module, its packages, and their imports from its folder."""
    top = module.partition(".")[0]
    if top == __package__ or top in sys.stdlib_module_names:
        return {}
    spec = getattr(sys.modules.get(top), "__spec__", None) or PathFinder.find_spec(
        top, [str(Path.cwd()), *sys.path]
    )
    if spec is None:
        return {}
    places = [spec.origin] if spec.has_location else [*(spec.submodule_search_locations or ())]
    if not places or places[0] is None:
        return {}
    place = Path(places[0]).absolute()
    folder = place.parent.parent if place.name == "__init__.py" else place.parent
    # A folder of another name comes from pip install --target.
    installed = folder.name in ("site-packages", "dist-packages") or any(folder.glob("*.dist-info"))
    if installed and not _is_installed_from_file(top):
        return {}
    found: dict[str, Path] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        first = name.partition(".")[0]
        place = folder.joinpath(*name.split("."))
        file = next(
            (
                f
                for f in (place / "__init__.py", place.with_name(f"{place.name}.py"))
                if f.is_file()
            ),
            None,
        )
        if name in found or file is None or first == __package__ or (installed and first != top):
            continue
        found[name] = file
        todo += _find_imports(name, file)
    return found


@cache
def _is_installed_from_file(package: str) -> bool:
    return any(
        distribution(each).read_text("direct_url.json")
        for each in packages_distributions().get(package, ())
    )


def _find_imports(module: str, file: Path) -> Iterator[str]:
    """Yield the names that a module imports, and the packages around them and itself."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    names = [module]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # importing it reports the error
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*around, node.module]))
            names += (
                [base, *(f"{base}.{each.name}" for each in node.names)]
                if base
                else [n.name for n in node.names]
            )
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))

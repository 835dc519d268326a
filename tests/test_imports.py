"""Imports make no circle, not even late ones, and each entry point imports no more than it needs,
to start at once."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.checkout import ROOT

PACKAGES = [
    path.parent
    for path in ROOT.glob("*/__init__.py")
    if path.parent.name not in ("tests", "docs", "benchmarks")
]


def imported(name: str, path: Path, among: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules that a module imports anywhere, for type checkers as well."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in among)
        elif isinstance(node, ast.ImportFrom):
            start = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            module = ".".join([*start, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                if inner in among or module in among:
                    yield inner if inner in among else module


def circle(graph: Mapping[str, list[str]]) -> list[str]:
    """Return the names along one circle of a graph, the first again at the end; [] where there is
    none."""
    done = set[str]()

    def search(path: list[str]) -> list[str]:
        for following in graph[path[-1]]:
            if following in path:
                return [*path[path.index(following) :], following]
            if following not in done and (found := search([*path, following])):
                return found
        done.add(path[-1])
        return []

    return next((found for name in graph if name not in done and (found := search([name]))), [])


def test_a_circle_is_found() -> None:
    assert circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_imports_make_a_circle_not_even_late_ones() -> None:
    files = {}
    for path in (path for package in PACKAGES for path in package.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        inside = parts if parts[0] == "fairbloom" else ("fairbloom", *parts)
        files[".".join(inside[:-1] if inside[-1] == "__init__" else inside)] = path
    # What the package itself exports is imported when it is asked for: see fairbloom/__init__.py.
    del files["fairbloom"]
    graph = {name: sorted({*imported(name, path, files)} - {name}) for name, path in files.items()}
    assert sum(map(len, graph.values())) > len(graph)  # imports are seen
    assert circle(graph) == []


# The libraries that take long to import.
LARGE = (
    *("torch", "pandas", "scipy", "sklearn", "pyarrow", "vl_convert", "jinja2", "PIL"),
    *("statsmodels", "ray", "flwr", "grpc", "numpy", "cvxopt", "safetensors", "pydantic"),
)


# Programs with the large libraries that each needs, if those before it have been run.
ENTRIES = [
    ("import fairbloom", []),
    ("import fairbloom.cli.main", []),
    ("import fairbloom.cli.deploy", []),
    (
        "sys.argv = ['fairbloom', '--help']; import fairbloom.__main__ as program; program.main()",
        [],
    ),
    ("import fairbloom.tables", ["numpy", "pydantic"]),
    ("import fairbloom.tasks", []),
    ("import fairbloom.strategies", ["flwr", "grpc", "cvxopt"]),
    (
        (
            "sys.argv = ['fairbloom', 'data', 'docs/data/tuned/contraception-seeds.csv',"
            " '--set', 'csv.target=mean', '--set', 'optimizer=adamw'];"
            " import fairbloom.__main__ as program; program.main()"
        ),
        ["pandas", "pyarrow", "jinja2", "safetensors"],
    ),
]
ENTRY = """
try:
    {code}
except SystemExit:
    pass
print("loaded", *sys.modules, file=sys.stderr)
"""


def test_an_entry_point_imports_what_it_needs(subtests: pytest.Subtests) -> None:
    """In one process, from the one that needs least to the one that needs most."""
    program = "import sys\n" + "".join(ENTRY.format(code=code) for code, _ in ENTRIES)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = [line.split() for line in done.stderr.splitlines() if line.startswith("loaded ")]
    before = set[str]()
    for (code, libraries), names in zip(ENTRIES, loaded, strict=True):
        with subtests.test(code=code):
            assert {*LARGE} & {*names} - before == {*libraries}
            before |= {*names}


@pytest.mark.parametrize("name", ["client", "deploy", "server", "strategies"])
def test_a_package_has_one_name(name: str) -> None:
    """A checkout is on the path, and by its short name each class would be there twice."""
    made = spec_from_file_location(name, ROOT / name / "__init__.py")
    assert made is not None
    with pytest.raises(ImportError, match=f"import fairbloom.{name}: "):
        made.loader.exec_module(module_from_spec(made))  # type: ignore[union-attr]
    assert import_module(f"fairbloom.{name}").__name__ == f"fairbloom.{name}"

"""Limits of style that no linter counts, over all packages.

CONTRIBUTING.md has the reasons. Limits are shares of the statements, so that growth is no fault.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.checkout import ROOT, package_files, tracked

# The folders of tests in which names still have more than LONGEST_NAME characters.
UNNAMED = ("server",)

LONGEST_NAME = 60

# Words of a private English; plain words exist for each.
WORDS = re.compile(
    r"\bwhose\b|\bso many\b|\bis none\b|\bnone is\b|\btold\b|\bbeside\b|\bnobody\b|\banybody\b"
    r"|\bwhat (?:says|computes|is|it)\b"
)

MAX_WORDS = 120

# The most uses of each in the packages, the docs and the other pages.
PATTERNS = {
    "those of": 74,
    "is no [a-z]+": 51,
    # "training alone" is the usual name of a baseline
    r"(?<!train )(?<!training )\balone\b": 28,
    r"\bwhose\b": 32,
    "by which": 28,
    "none of": 14,
}

# The limits per 1,000 statements.
LIMITS = {"tuple assignments": 3.0, "conditional expressions": 28.0}

# Most conditional expressions inside another one.
MAX_NESTED = 3

MAX_STATEMENTS = 45

MAX_ARGUMENTS = 5

# In these modules an argument is an option of a command, or its counterpart in Python.
OPTIONS = ("fairbloom/cli/", "fairbloom/experiments/api.py")

# Older functions with more arguments, by file; a constructor may have as many as it declares.
WIDE = {
    "client/group_metrics.py": {"measure_groups"},
    "client/guard/evaluated_model.py": {"keep_model", "write_model"},
    "client/local_round.py": {"train_here"},
    "client/plan.py": {"work_of_client"},
    "client/training.py": {"train"},
    "client/work.py": {"descend"},
    "deploy/pki.py": {"_certify", "make_server_certificate"},
    "fairbloom/experiments/results/reproduction.py": {"_read_row"},
    "fairbloom/experiments/studies/reproduce.py": {"reproduce"},
    "fairbloom/rounds/aggregation.py": {"build_cohort"},
    "fairbloom/rounds/screening.py": {"find_outlier_norms"},
    "fairbloom/simulation/stacked/arrays.py": {"find_recorded"},
    "fairbloom/simulation/stacked/clients.py": {"_train", "train_together"},
    "fairbloom/tables/encoding.py": {"explain_cell"},
    "fairbloom/tables/reading.py": {"_parse_rows"},
    "fairbloom/tasks/columns.py": {"infer"},
    "fairbloom/tasks/datasets/classification.py": {"classify"},
    "fairbloom/tasks/datasets/pictures.py": {"load"},
    "fairbloom/tasks/images.py": {"infer"},
    "fairbloom/tasks/models/registry.py": {"build"},
    "server/app.py": {"federate"},
    "server/run_folder/flower.py": {"start"},
    "strategies/strategy.py": {"start"},  # Flower's own signature
}


parsed = cache(ast.parse)


def functions_of(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def long_functions(source: str) -> set[str]:
    """Return the names of functions with more than MAX_STATEMENTS statements inside."""
    found = set[str]()
    for function in functions_of(source):
        inside = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
        if inside > MAX_STATEMENTS:
            found.add(function.name)
    return found


def wide_functions(source: str) -> set[str]:
    """Return the names of functions, not constructors, with more than MAX_ARGUMENTS arguments."""
    found = set[str]()
    for function in functions_of(source):
        given = function.args
        names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        own = [name for name in names if name not in ("self", "cls")]
        if len(own) > MAX_ARGUMENTS and function.name != "__init__":
            found.add(function.name)
    return found


def is_swap(node: ast.Assign) -> bool:
    """Return whether a tuple assignment reads one of its own targets, as a, b = b, a does."""
    targets = {ast.unparse(each) for each in getattr(node.targets[0], "elts", ())}
    return bool(targets & {ast.unparse(each) for each in getattr(node.value, "elts", ())})


def count_style(source: str) -> Counter[str]:
    found = Counter[str]()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.stmt):
            found["statements"] += 1
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            packs = isinstance(node.value, ast.Tuple | ast.GeneratorExp)
            found["tuple assignments"] += packs and not is_swap(node)
        if isinstance(node, ast.IfExp):
            found["conditional expressions"] += 1
            found["nested"] += any(
                isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse)
            )
    return found


@pytest.fixture(scope="module")
def style() -> Counter[str]:
    found = Counter[str]()
    for path in package_files():
        if "template" not in path.parts:  # not in a user's app
            found += count_style(Path(ROOT, path).read_text())
    return found


def test_style_is_counted() -> None:
    packed = count_style("a, b = 1, 2\na, b = b, a\nc, d = (f(x) for x in y)\na, b = f()")
    assert packed["tuple assignments"] == 2
    nested = count_style("a = 1 if x else 2 if y else 3")
    assert (nested["conditional expressions"], nested["nested"]) == (2, 1)


def test_statements_are_unpacked(style: Counter[str]) -> None:
    shares = {name: 1000 * style[name] / style["statements"] for name in LIMITS}
    assert all(shares[name] <= most for name, most in LIMITS.items()), shares


def test_conditional_expressions_are_not_nested(style: Counter[str]) -> None:
    assert style["nested"] <= MAX_NESTED


def test_long_and_wide_functions_are_found() -> None:
    short, long = (
        "\n".join(["    x = 1"] * count) for count in (MAX_STATEMENTS, MAX_STATEMENTS + 1)
    )
    assert long_functions(f"def f():\n{short}\ndef g():\n{long}") == {"g"}
    five = "def f(self, a, b, c, *, d, e): ..."
    six = "async def g(a, b, /, c, *, d, e, f): ..."
    made = "def __init__(self, a, b, c, d, e, f): ..."
    assert wide_functions(f"{five}\n{six}\n{made}") == {"g"}


def test_no_function_is_long() -> None:
    long = {
        f"{path}: {name}"
        for path in package_files()
        for name in long_functions(Path(ROOT, path).read_text())
    }
    assert not long, f"more than {MAX_STATEMENTS} statements: {sorted(long)}"


def test_no_new_function_has_many_arguments() -> None:
    wide = {
        f"{path}: {name}"
        for path in package_files()
        if not str(path).startswith(OPTIONS)
        for name in wide_functions(Path(ROOT, path).read_text()) - WIDE.get(str(path), set())
    }
    assert not wide, f"more than {MAX_ARGUMENTS} arguments: {sorted(wide)}"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_phrase_is_rare(pattern: str) -> None:
    """The usual word exists for each: "its own", "not a", "only", "of which", "with which", "no"."""
    pages = [path for path in tracked(".md") if path.parts[0] not in ("tests", "benchmarks")]
    texts = [Path(ROOT, path).read_text() for path in (*package_files(), *pages)]
    assert sum(len(re.findall(pattern, text, re.IGNORECASE)) for text in texts) <= PATTERNS[pattern]


def test_the_english_is_plain() -> None:
    used = Counter[str]()
    for path in package_files():
        used[str(path)] += len(WORDS.findall(Path(ROOT, path).read_text()))
    assert used.total() <= MAX_WORDS, used.most_common(20)


def test_a_test_says_what_holds_in_60_characters() -> None:
    long = [
        name
        for path in Path(ROOT, "tests").glob("*/**/test_*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in UNNAMED
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) > LONGEST_NAME
    ]
    assert not long, f"shorten these names: {long}"

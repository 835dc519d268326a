"""Limits of style that no linter counts, over all packages.

CONTRIBUTING.md has the reasons. Limits are shares of the statements, so that growth is no fault.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.checkout import ROOT

from .test_budgets import package_files, tracked

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


def is_swap(node: ast.Assign) -> bool:
    """Return whether a tuple assignment reads one of its own targets, as a, b = b, a does."""
    targets = {ast.unparse(each) for each in getattr(node.targets[0], "elts", ())}
    return bool(targets & {ast.unparse(each) for each in getattr(node.value, "elts", ())})


def count_style(source: str) -> Counter[str]:
    found = Counter[str]()
    for node in ast.walk(ast.parse(source)):
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

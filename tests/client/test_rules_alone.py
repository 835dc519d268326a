"""Only rules know the requests of methods: the code that trains clients names no method and no key
of one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.protocol.terms import RULES
from fairbloom.strategies import METHODS

ROOT = Path(__file__).parents[2]

# The files that compute clients.
NAMELESS = (
    "client/gate.py",
    "client/local.py",
    "client/local_round.py",
    "client/metrics.py",
    "client/plan.py",
    "client/support.py",
    "client/training.py",
    "client/work.py",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("client/fair/*.py")),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("fairbloom/simulation/stacked/*.py")),
    "fairbloom/simulation/clients.py",
)

KEYS = {key for rule in RULES for key in rule.keys}
CLASSES = {method.__name__ for method in METHODS.values()}
FORBIDDEN = KEYS | {key.replace("-", "_") for key in KEYS} | CLASSES


def words_in(code: str) -> Iterator[str]:
    """Yield the names in a file, and the words of its strings except docstrings."""
    tree = ast.parse(code)
    docs = {
        id(node.value)
        for parent in ast.walk(tree)
        if isinstance(getattr(parent, "body", None), list)
        for node in parent.body  # type: ignore[attr-defined]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from re.findall(r"[\w-]+", node.value)
        for field in ("id", "attr", "arg", "name"):
            if isinstance(named := getattr(node, field, None), str):
                yield named


@pytest.mark.parametrize("file", NAMELESS)
def test_who_computes_clients_names_no_method_and_no_key(file: str) -> None:
    assert sorted(FORBIDDEN.intersection(words_in((ROOT / file).read_text()))) == []


def test_the_words_of_a_file_are_its_names_and_strings() -> None:
    code = 'class A:\n    """Ditto"""\n    x = terms.proximal_mu\n    y = f"{x} local-steps = 3"\n'
    assert {"A", "terms", "proximal_mu", "local-steps", "3"} <= {*words_in(code)}
    assert "Ditto" not in words_in(code)

"""The page of errors: its table quotes what the code says; its other messages are made by its commands."""

import ast
import re
from functools import cache
from typing import TypeGuard

import pytest

from .pages import ROOT

PACKAGES = (
    "client",
    "deploy",
    "experiments",
    "protocol",
    "rounds",
    "server",
    "simulation",
    "strategies",
    "system",
    "tasks",
)
ROWS = re.findall(r'^\| "(.+?)" \|', (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
QUOTED = sorted({part.strip() for words in ROWS for part in words.split("…")})


@cache
def texts() -> tuple[str, ...]:
    """Return all texts of the code but its docstrings, those of an f-string with a gap where a value comes."""
    found: list[str] = []
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            nodes = [*ast.walk(ast.parse(file.read_text()))]
            docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(part.value if is_text(part) else "\0" for part in node.values))
                elif is_text(node) and node not in docstrings:
                    found.append(node.value)
    return tuple(found)


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    """Return whether a node is a text as it stands in the code."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("words", QUOTED)
def test_the_code_says_what_the_table_quotes(words: str) -> None:
    """Whoever changes a message changes its words in the table."""
    assert any(words in text for text in texts())


def test_the_table_has_messages() -> None:
    assert len(QUOTED) > 12

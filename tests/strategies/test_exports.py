"""Every method file keeps to the pattern: exported, documented as it is checked, short."""

import ast
import importlib
import inspect
import io
import pydoc
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest

from fairbloom import strategies
from fairbloom.protocol.parameters import Parameter, described, parameters_of
from fairbloom.rounds.method import Method
from fairbloom.strategies import METHODS, FairStrategy, FromTorchJD

from .helpers import ARGUMENTS, make

FILES = sorted(Path(strategies.__file__).parent.glob("*.py"))
PUBLIC = [*METHODS.values(), FromTorchJD]
every_class = pytest.mark.parametrize("method", PUBLIC, ids=lambda method: method.__name__)


def own_parameters(method: type[FairStrategy]) -> tuple[Parameter, ...]:
    """What a run can set of a method; what is made of a weighting of TorchJD has none."""
    return () if method is FromTorchJD else parameters_of(method.__name__.lower(), method)


OTHERS = {
    "Cohort",
    "FairStrategy",
    "FloatArray",
    "Kept",
    "METHODS",
    "Options",
    "Round",
    "canonical",
    "find_method",
    "name_of",
}

# Exports ------------------------------------------------------------------------------------------------------------


def test_every_public_class_with_a_weigh_is_exported() -> None:
    """A base without a weigh of its own, as Stepped, is no method."""
    found = set()
    for path in FILES:
        module = importlib.import_module(f"fairbloom.strategies.{path.stem}".removesuffix(".__init__"))
        for name, member in inspect.getmembers(module, inspect.isclass):
            public = issubclass(member, FairStrategy) and not name.startswith("_")
            if public and member.weigh is not FairStrategy.weigh:
                assert name == member.__name__
                found.add(name)
    assert found == {method.__name__ for method in PUBLIC}
    assert found | OTHERS == set(strategies.__all__)
    assert {name: method.__name__.lower() for name, method in METHODS.items()} == {name: name for name in METHODS}
    assert all(getattr(strategies, name) is not None for name in strategies.__all__)


def test_each_method_has_its_test_file_or_shares_its_sources() -> None:
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    sources = {Path(inspect.getfile(method)).stem for method in PUBLIC} - {"fedavgn"}  # in test_fedmgda.py
    assert sources <= tests


# Docstrings ---------------------------------------------------------------------------------------------------------


@every_class
def test_the_docstring_has_a_formula_and_a_source(method: type[FairStrategy]) -> None:
    assert "__doc__" in vars(method)
    text = inspect.getdoc(method) or ""
    assert ".. math::" in text
    (source,) = [part for part in text.split("\n\n") if part.startswith("Source:")]
    assert re.search(r"\b(19|20)\d\d\b", source) or method is METHODS["local"]


@every_class
def test_the_parameters_section_names_the_own_parameters(method: type[FairStrategy]) -> None:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    taken = {name for name, each in inspect.signature(method).parameters.items() if each.kind not in kinds}
    assert set(described(inspect.getdoc(method) or "")) == taken


def outside(kind: str) -> list[Any]:
    """Values outside a range that is written in words."""
    never = [float("nan"), float("inf"), float("-inf"), None, "0.5", True]
    if found := re.fullmatch(r"(float|int) at least (\S+)", kind):
        lowest = float(found[2])
        return [*never, lowest - 1, *([lowest + 0.5] if found[1] == "int" else [lowest - 1e-9])]
    if found := re.fullmatch(r"float above (\S+)", kind):
        return [*never, float(found[1]), float(found[1]) - 1.0]
    if found := re.fullmatch(r"float in ([\[(])(\S+), (\S+)([\])])", kind):
        low, high = float(found[2]), float(found[3])
        ends = [end for bracket, end in ((found[1], low), (found[4], high)) if bracket in "()"]
        return [*never, low - 1e-9, high + 1e-9, *ends]
    if kind == "float":
        return never
    if kind == "bool":
        return [*never[:-1], 0, 1, "true"]
    if kind.startswith('"" or pairs as in'):
        return ["pair", "a=1 a=2", 0.5, True]
    if found := re.fullmatch(r"([\w-]+(?:, [\w-]+)*) or ([\w-]+)", kind):
        return [*never, "", found[2].upper()]
    raise AssertionError(f"no range is stated by {kind!r}")


def inside(kind: str) -> list[Any]:
    """Values at the ends of a range that is written in words, and within it."""
    if found := re.fullmatch(r"(float|int) at least (\S+)", kind):
        return [int(found[2]), int(found[2]) + 3]
    if found := re.fullmatch(r"float above (\S+)", kind):
        return [float(found[1]) + 1e-9, 1e9]
    if found := re.fullmatch(r"float in ([\[(])(\S+), (\S+)([\])])", kind):
        low, high = float(found[2]), float(found[3])
        ends = [end for bracket, end in ((found[1], low), (found[4], high)) if bracket in "[]"]
        return [*ends, low + 1e-9, high - 1e-9]
    if kind == "float":
        return [-1e30, 0.0, 1e30]
    if kind == "bool":
        return [False, True]
    if found := re.fullmatch("\"\" or pairs as in ('.*')", kind):
        return ["", None, ast.literal_eval(found[1])]
    return kind.replace(" or ", ", ").split(", ")


@pytest.mark.parametrize(
    ("name", "parameter", "text"),
    [(name, each.argument, each.range) for name, method in METHODS.items() for each in own_parameters(method)],
)
def test_the_constructor_keeps_to_the_stated_ranges(name: str, parameter: str, text: str) -> None:
    for value in inside(text):
        make(name, {**ARGUMENTS[name][0], parameter: value})
    for value in outside(text):
        with pytest.raises(ValueError, match=parameter) as refused:
            make(name, {**ARGUMENTS[name][0], parameter: value})
        assert repr(value) in str(refused.value)


def test_the_common_options_are_documented_once() -> None:
    assert set(described(inspect.getdoc(Method) or "")) == strategies.Options.__optional_keys__


# Size ---------------------------------------------------------------------------------------------------------------


def code_lines(path: Path) -> int:
    """How many lines hold code: no docstrings, comments or blank lines."""
    source = path.read_text(encoding="utf-8")
    strings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    no_code = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in no_code:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


@pytest.mark.parametrize("path", sorted({Path(inspect.getfile(method)) for method in PUBLIC}), ids=lambda p: p.name)
def test_a_method_file_has_at_most_90_lines_of_code(path: Path) -> None:
    assert code_lines(path) <= 90


def test_only_strategy_py_knows_flower_and_simplex_py_the_solver() -> None:
    for package, home in (("flwr", "strategy.py"), ("cvxopt", "simplex.py")):
        pattern = re.compile(rf"^\s*(import|from) {package}\b", re.MULTILINE)
        assert [path.name for path in FILES if pattern.search(path.read_text(encoding="utf-8"))] == [home]


@pytest.mark.parametrize("name", METHODS)
def test_help_shows_types_and_no_raw_annotations(name: str) -> None:
    shown = pydoc.render_doc(METHODS[name], renderer=pydoc.plaintext)
    assert "Annotated" not in shown
    assert "Range(" not in shown
    assert "Unpack" not in shown
    assert all(f"{each.argument}: " in shown for each in parameters_of(name, METHODS[name]))

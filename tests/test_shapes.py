"""Several steps are not packed into one statement: what still is, is listed, and only shrinks."""

import ast
from collections.abc import Callable

import pytest

from .shapes import SHAPES, differences, listed, shapes_in, shapes_of_packages, title_of

# For each shape a statement that has it, and one that nearly has.
EXAMPLES = {
    "is_deep": ("a = f(g(h(i(x))))", "a = f(g(h(x)))"),
    "is_long": ("a = [\n x\n for\n x\n in\n y]", "a = [\n x\n for\n x\n in y]"),
    "is_nested": ("a = [[x for x in y] for y in z]", "a = [f(x) for x in y]"),
    "asks_what_is_known": ("a = [x for x in y if z]", "a = [x for x in y if x != z]"),
    "is_loop_over_one": ("for x in [y]: f(x)", "for x in [*y]: f(x)"),
    "is_if_by_list": ("a = [*map(f, x[:1])]", "a = [*map(f, x[:2])]"),
    "is_if_by_arithmetic": ("a = 2 * (x > y)", "a = 2 * x"),
    "is_if_by_dictionary": ("a = {0: x}.get(y)", "a = {0: x, 1: z}.get(y)"),
    "is_table_of_faults": ("a = {f'{x} is wrong': not x}", "a = {'x': not x}"),
    "is_starred_literal": ("a = [*('x', 'y'), z]", "a = [*(x, 'y'), z]"),
    "is_row_of_arguments": ("f(1, 2, 3, 4, 5, 6, 7, 8)", "f(1, 2, 3, 4, 5, 6, 7, x=8)"),
}


@pytest.mark.parametrize(("shape", "example"), [*zip(SHAPES, EXAMPLES.items(), strict=True)])
def test_a_shape_is_found(
    shape: Callable[[ast.AST], bool], example: tuple[str, tuple[str, str]]
) -> None:
    name, (packed, plain) = example
    assert shape.__name__ == name
    title = title_of(shape)
    assert shapes_in(packed)[title] == 1
    assert shapes_in(plain)[title] == 0


def test_what_is_packed_is_listed() -> None:
    assert not [*differences(shapes_of_packages(), listed())]


def test_the_list_only_shrinks() -> None:
    """More than is listed is a fault, and so is a list that allows more than there is."""
    found = {("a.py", "x"): 2, ("b.py", "x"): 1}
    (more,) = differences(found, {("a.py", "x"): 1, ("b.py", "x"): 1})
    assert more.startswith("a.py: 2 times, and 1 are listed")
    (fewer,) = differences(found, {("a.py", "x"): 2, ("b.py", "x"): 3})
    assert fewer.startswith("b.py: 1 of 3")

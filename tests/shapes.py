"""Shapes of code that pack several steps into one statement, where a name or a loop is plainer.

CONTRIBUTING.md has the reasons. `python -m tests.shapes` writes shapes.csv: how many of each a file
still has. It may only shrink.
"""

import ast
import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.checkout import ROOT, package_files

LIST = Path(__file__).with_name("shapes.csv")

# A call or comprehension in a call in a call is nested three deep.
DEEPEST = 3

LONGEST_COMPREHENSION = 5

MOST_POSITIONAL = 7

# A key of a dictionary that is longer than this is a sentence.
LONGEST_KEY = 30

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Statement = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr


def depth_of(node: ast.AST) -> int:
    """Return how deep calls and comprehensions are nested in a node."""
    below = max((depth_of(child) for child in ast.iter_child_nodes(node)), default=0)
    return below + isinstance(node, ast.Call | Comprehension)


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a node reads or binds."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def is_condition(node: ast.AST) -> bool:
    """Return whether an expression is a comparison, a negation, or several of them."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare | ast.BoolOp)


def is_list_of_one(node: ast.AST) -> bool:
    """Return whether a list or tuple is written with one element."""
    if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) != 1:
        return False
    return not isinstance(node.elts[0], ast.Starred)


def is_slice_of_one(node: ast.AST) -> bool:
    """Return whether an expression is `x[:1]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    upper = node.slice.upper
    return isinstance(upper, ast.Constant) and upper.value == 1


# Each shape, and whether a node has it ------------------------------------------------------------


def is_deep(node: ast.AST) -> bool:
    """Four calls or comprehensions in one another."""
    if isinstance(node, ast.Raise):
        return node.exc is not None and depth_of(node.exc) > DEEPEST
    if not isinstance(node, Statement) or node.value is None:
        return False
    return depth_of(node.value) > DEEPEST


def is_long(node: ast.AST) -> bool:
    """A comprehension of six lines or more."""
    if not isinstance(node, Comprehension):
        return False
    return (node.end_lineno or 0) - node.lineno >= LONGEST_COMPREHENSION


def is_nested(node: ast.AST) -> bool:
    """A comprehension in a comprehension."""
    if not isinstance(node, Comprehension):
        return False
    return sum(isinstance(each, Comprehension) for each in ast.walk(node)) > 1


def asks_what_is_known(node: ast.AST) -> bool:
    """A condition in a comprehension that does not depend on its loop."""
    if not isinstance(node, Comprehension):
        return False
    bound = set[str]().union(*(names_in(each.target) for each in node.generators))
    bound |= {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
    for generator in node.generators:
        for test in generator.ifs:
            parts = test.values if isinstance(test, ast.BoolOp) else [test]
            if any(not names_in(part) & bound for part in parts):
                return True
    return False


def is_loop_over_one(node: ast.AST) -> bool:
    """A loop over one element, which is an assignment."""
    return isinstance(node, ast.For | ast.comprehension) and is_list_of_one(node.iter)


def is_if_by_list(node: ast.AST) -> bool:
    """A list of at most one element in place of an `if`."""
    if isinstance(node, ast.comprehension):
        return is_slice_of_one(node.iter)
    is_map = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "map"
    return is_map and any(map(is_slice_of_one, getattr(node, "args", ())))


def is_if_by_arithmetic(node: ast.AST) -> bool:
    """A truth value in arithmetic."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Add):
        return False
    return is_condition(node.left) or is_condition(node.right)


def is_if_by_dictionary(node: ast.AST) -> bool:
    """A dictionary of one entry that is asked by `get`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    asked = node.func.value
    return node.func.attr == "get" and isinstance(asked, ast.Dict) and len(asked.keys) == 1


def is_table_of_faults(node: ast.AST) -> bool:
    """A dictionary of sentences and their conditions."""
    if not isinstance(node, ast.Dict):
        return False
    for key, value in zip(node.keys, node.values, strict=True):
        is_sentence = isinstance(key, ast.JoinedStr) or (
            isinstance(key, ast.Constant) and len(str(key.value)) > LONGEST_KEY
        )
        is_truth = isinstance(value, ast.Call) and getattr(value.func, "id", "") in (
            "bool",
            "any",
            "all",
        )
        if is_sentence and (is_condition(value) or is_truth):
            return True
    return False


def is_starred_literal(node: ast.AST) -> bool:
    """A star of a literal of several constants."""
    if not isinstance(node, ast.Starred) or not isinstance(node.value, ast.Tuple | ast.List):
        return False
    constants = [isinstance(each, ast.Constant) for each in node.value.elts]
    return len(constants) > 1 and all(constants)


def is_row_of_arguments(node: ast.AST) -> bool:
    """Eight arguments without names."""
    if not isinstance(node, ast.Call):
        return False
    positional = [each for each in node.args if not isinstance(each, ast.Starred)]
    return len(positional) > MOST_POSITIONAL


SHAPES: tuple[Callable[[ast.AST], bool], ...] = (
    is_deep,
    is_long,
    is_nested,
    asks_what_is_known,
    is_loop_over_one,
    is_if_by_list,
    is_if_by_arithmetic,
    is_if_by_dictionary,
    is_table_of_faults,
    is_starred_literal,
    is_row_of_arguments,
)


def title_of(shape: Callable[[ast.AST], bool]) -> str:
    """Return what a shape is, in words."""
    return (shape.__doc__ or "").removesuffix(".")


def shapes_in(source: str) -> Counter[str]:
    """Return how often each shape is in some source code."""
    found = Counter[str]()
    for node in ast.walk(ast.parse(source)):
        found.update(title_of(shape) for shape in SHAPES if shape(node))
    return found


def shapes_of_packages() -> dict[tuple[str, str], int]:
    """Return the shapes of all packages, by file and shape."""
    found: dict[tuple[str, str], int] = {}
    for path in package_files():
        if "template" in path.parts:  # a user's app
            continue
        for shape, count in sorted(shapes_in(Path(ROOT, path).read_text()).items()):
            found[str(path), shape] = count
    return found


def listed() -> dict[tuple[str, str], int]:
    """Return the shapes that files may still have."""
    with LIST.open(newline="") as file:
        return {(row["file"], row["shape"]): int(row["count"]) for row in csv.DictReader(file)}


def differences(
    found: dict[tuple[str, str], int], allowed: dict[tuple[str, str], int]
) -> Iterator[str]:
    """Yield where a file has more shapes than it may have, or fewer."""
    for file, shape in sorted(found.keys() | allowed.keys()):
        count = found.get((file, shape), 0)
        most = allowed.get((file, shape), 0)
        if count > most:
            yield f"{file}: {count} times, and {most} are listed: {shape}: name a step"
        if count < most:
            yield f"{file}: {count} of {most}: {shape}: python -m tests.shapes lowers the list"


def main() -> None:
    """Write the list."""
    with LIST.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "shape", "count"])
        for (path, shape), count in sorted(shapes_of_packages().items()):
            writer.writerow([path, shape, count])
    print(sum(listed().values()), "in", LIST.name, file=sys.stderr)


if __name__ == "__main__":
    main()

"""Each room has a budget of statements, the docs have one of words: the project grows in sight.

A statement is an `ast.stmt`; each target of a tuple assignment counts as one, so that packing code
saves nothing. Raise a room's number only with a line in docs/decisions.md that says what it buys,
and those of all packages and of all tests for nothing.
"""

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.checkout import ROOT

# The statements of Python in each package and subpackage that is larger than SMALL_ROOM.
ROOMS: Mapping[str, int] = {
    "fairbloom/cli": 813,
    "client": 2_212,
    "client/guard": 905,
    "client/private": 1_258,
    "client/rules": 678,
    "deploy/operator": 643,
    "deploy/fleet": 2_673,
    "fairbloom/experiments": 683,
    "fairbloom/experiments/pages": 1_024,
    "fairbloom/experiments/results": 1_913,
    "fairbloom/experiments/studies": 866,
    "fairbloom": 726,
    "fairbloom/protocol": 1_060,
    "fairbloom/rounds": 3_233,
    "server": 939,
    "server/run_folder": 1_325,
    "fairbloom/simulation": 670,
    "fairbloom/simulation/stacked": 1_039,
    "strategies": 2_131,
    "fairbloom/tables": 3_853,
    "fairbloom/tasks": 2_123,
    "fairbloom/tasks/datasets": 640,
}

# The most statements of a room without a budget of its own.
SMALL_ROOM = 600

# A room may exceed its budget by this factor, so that a line more fails no test.
SLACK = 1.03

# The most statements in all packages.
WHOLE = 34_900

# The most statements in all tests: two for each that an issue may add are in it.
TESTS = 44_150

# The most statements in the scripts of docs/ and benchmarks/.
SCRIPTS = 3_950

# The words in docs/, with the prose of its gallery; 38,000 with the slack.
DOCS_WORDS = 36_900

# The most direct dependencies of a bare install.
DEPENDENCIES = 23

# The folders that hold no package.
OUTSIDE = ("tests", "docs", "benchmarks", "locks")

# The folders of tests in which names still have more than LONGEST_NAME characters.
UNNAMED = ("server",)

LONGEST_NAME = 60


def tracked(ending: str) -> list[Path]:
    """Return the paths, relative to the checkout, of the files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{ending}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if Path(ROOT, line).exists()]


def package_files() -> Iterator[Path]:
    """Yield the files of the packages, relative to the checkout."""
    for path in tracked(".py"):
        if path.parts[0] not in OUTSIDE and not Path(ROOT, path).is_symlink():
            yield path


def count_statements(source: str) -> int:
    """Return the number of statements; a tuple assignment counts once for each target."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            count += 1
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            count += sum(
                len(target.elts) - 1 for target in node.targets if isinstance(target, ast.Tuple)
            )
    return count


@pytest.fixture(scope="module")
def statements() -> Counter[str]:
    found = Counter[str]()
    for path in package_files():
        found[str(path.parent)] += count_statements(Path(ROOT, path).read_text())
    return found


def test_packing_code_saves_no_statement() -> None:
    assert count_statements("a, b = 1, 2") == count_statements("a = 1\nb = 2") == 2


def test_no_room_is_larger_than_its_budget(statements: Counter[str]) -> None:
    over = {
        room: count
        for room, count in statements.items()
        if count > SLACK * ROOMS.get(room, SMALL_ROOM)
    }
    assert not over, f"too large: {over}; say in docs/decisions.md what the statements buy"


def test_the_whole_is_no_larger_than_its_budget(statements: Counter[str]) -> None:
    assert statements.total() <= WHOLE


def test_the_tests_are_no_larger_than_their_budget() -> None:
    paths = [Path(ROOT, path) for path in tracked(".py") if path.parts[0] == "tests"]
    assert sum(count_statements(path.read_text()) for path in paths) <= TESTS


def test_scripts_are_no_larger_than_their_budget() -> None:
    paths = [Path(ROOT, path) for path in tracked(".py") if path.parts[0] in ("docs", "benchmarks")]
    assert sum(count_statements(path.read_text()) for path in paths) <= SCRIPTS


def test_budgets_name_rooms_that_exist(statements: Counter[str]) -> None:
    assert ROOMS.keys() <= statements.keys()


def prose_of(source: str) -> str:
    """Return the comments and docstrings of a source; in the gallery they are its pages' text."""
    nodes = ast.walk(ast.parse(source))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    prose = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            prose.append(token.string.lstrip("#% "))
    return "\n".join(prose)


def test_prose_of_a_source_is_its_comments_and_docstrings() -> None:
    source = '"""One two"""\n# %%\n# three\ndef f():\n    """four"""\n    return "#"  # five\n'
    assert prose_of(source).split() == ["One", "two", "four", "three", "five"]


def test_the_docs_have_no_more_words_than_their_budget() -> None:
    pages = [Path(ROOT, path) for path in tracked(".md") if path.parts[0] == "docs"]
    gallery = Path(ROOT, "docs", "gallery")
    texts = [page.read_text() for page in [*pages, *gallery.glob("*.txt")]]
    texts += [prose_of(example.read_text()) for example in gallery.glob("*.py")]
    assert sum(len(text.split()) for text in texts) <= SLACK * DOCS_WORDS


def test_a_bare_install_has_no_more_direct_dependencies_than_its_budget() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= DEPENDENCIES


def test_a_test_says_what_holds_in_60_characters() -> None:
    long = [
        name
        for path in Path(ROOT, "tests").glob("*/**/test_*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in UNNAMED
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) > LONGEST_NAME
    ]
    assert not long, f"shorten these names: {long}"

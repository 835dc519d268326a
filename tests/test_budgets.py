"""The project does not grow unseen: each room, the tests and the docs have a budget of lines or
words.

Raise a budget only with a line in docs/decisions.md that says what it buys; lower it when a room
gets smaller.
"""

import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.checkout import ROOT

ROOMS: Mapping[str, int] = {
    "client": 2_540,
    "client/rules": 1_018,
    "deploy/fleet": 2_663,
    "experiments": 1_126,
    "experiments/check": 1_090,
    "experiments/pages": 1_723,
    "experiments/results": 2_578,
    "experiments/studies": 1_032,
    "prediction": 924,
    "protocol": 1_446,
    "rounds": 4_500,
    "server": 1_332,
    "server/run_folder": 1_858,
    "simulation": 1_265,
    "simulation/stacked": 1_131,
    "strategies": 3_423,
    "tasks": 2_935,
    "tasks/datasets": 1_107,
    "tasks/files": 1_622,
}
"""The most lines of Python in each package and subpackage that is larger than SMALL_ROOM."""

PACKAGES = 40_805
TESTS = 45_954
"""The most lines of Python in all packages, and in the tests."""

DOCS_WORDS = 29_977
DEPENDENCIES = 15
"""The most words in docs/, and the most direct dependencies of a bare install."""

OUTSIDE = ("tests", "docs", "benchmarks", "locks")
"""The folders that hold no package."""

SMALL_ROOM = 1000

UNNAMED = ("deploy", "server")
"""The folders of tests in which names still have more than LONGEST_NAME characters."""

LONGEST_NAME = 60


def tracked(ending: str) -> list[Path]:
    """Return the paths, relative to the checkout, of the files that git knows, or would if they
    were added."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{ending}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if Path(ROOT, line).exists()]


def count_lines() -> Counter[str]:
    """Return the lines of Python in each folder of the packages."""
    lines = Counter[str]()
    for path in tracked(".py"):
        if path.parts[0] not in OUTSIDE and not path.is_symlink():
            lines[str(path.parent)] += len(Path(ROOT, path).read_text().splitlines())
    return lines


@pytest.fixture(scope="module")
def lines() -> Counter[str]:
    return count_lines()


def test_no_room_is_larger_than_its_budget(lines: Counter[str]) -> None:
    over = {room: count for room, count in lines.items() if count > ROOMS.get(room, SMALL_ROOM)}
    assert not over, (
        f"too large: {over}; move or delete something, or say in docs/decisions.md what the"
        " lines buy"
    )


def test_the_whole_is_no_larger_than_its_budget(lines: Counter[str]) -> None:
    assert lines.total() <= PACKAGES
    tests = [path for path in tracked(".py") if path.parts[0] == "tests"]
    assert sum(len(Path(ROOT, path).read_text().splitlines()) for path in tests) <= TESTS


def test_the_docs_have_no_more_words_than_their_budget() -> None:
    pages = [Path(ROOT, path) for path in tracked(".md") if path.parts[0] == "docs"]
    assert sum(len(page.read_text().split()) for page in pages) <= DOCS_WORDS


def test_a_bare_install_has_no_more_direct_dependencies_than_its_budget() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= DEPENDENCIES


def test_a_budget_is_lowered_once_the_room_is_smaller(lines: Counter[str]) -> None:
    loose = {
        room: (lines[room], budget) for room, budget in ROOMS.items() if lines[room] < 0.95 * budget
    }
    assert not loose, f"lower the budgets of these rooms to what they have: {loose}"


def test_a_test_says_what_holds_in_60_characters() -> None:
    long = [
        name
        for path in Path(ROOT, "tests").glob("*/**/test_*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in UNNAMED
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) > LONGEST_NAME
    ]
    assert not long, f"shorten these names: {long}"

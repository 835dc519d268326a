"""The project does not grow unseen: each room, the tests, README and the docs have a number of lines or words."""

import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.checkout import ROOT

ROOMS: Mapping[str, int] = {}
"""The most lines of Python in each package and subpackage; what is below 1,000 has no number of its own."""

PACKAGES, TESTS, README_WORDS, DOCS_WORDS, DEPENDENCIES = 0, 0, 0, 0, 0

OUTSIDE = ("tests", "docs", "benchmarks", "locks")
"""The folders that hold no package."""

SMALL_ROOM = 1000


def tracked(ending: str) -> list[Path]:
    """Return the paths, relative to the checkout, of the files that git knows, or would if they were added."""
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


def count_words(paths: list[Path]) -> int:
    return sum(len(Path(ROOT, path).read_text().split()) for path in paths)


@pytest.fixture(scope="module")
def lines() -> Counter[str]:
    return count_lines()


def test_no_room_is_larger_than_its_budget(lines: Counter[str]) -> None:
    over = {room: count for room, count in lines.items() if count > ROOMS.get(room, SMALL_ROOM)}
    assert not over, f"too large: {over}; move or delete something, or say in docs/decisions.md what the lines buy"


def test_the_whole_is_no_larger_than_its_budget(lines: Counter[str]) -> None:
    assert lines.total() <= PACKAGES
    tests = [path for path in tracked(".py") if path.parts[0] == "tests"]
    assert sum(len(Path(ROOT, path).read_text().splitlines()) for path in tests) <= TESTS


def test_readme_and_docs_have_no_more_words_than_their_budget() -> None:
    pages = [path for path in tracked(".md") if path.parts[0] == "docs"]
    assert count_words([Path("README.md")]) <= README_WORDS
    assert count_words(pages) <= DOCS_WORDS


def test_a_bare_install_has_no_more_direct_dependencies_than_its_budget() -> None:
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= DEPENDENCIES


def test_a_budget_is_lowered_once_the_room_is_smaller(lines: Counter[str]) -> None:
    loose = {room: (lines[room], budget) for room, budget in ROOMS.items() if lines[room] < 0.95 * budget}
    assert not loose, f"lower the budgets of these rooms to what they have: {loose}"

"""Links of the pages that Sphinx does not see lead to files that are there."""

import re
from pkgutil import resolve_name

import pytest

from .pages import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")
LINKS = [(page, link) for page in PAGES for link in LINK.findall((ROOT / page).read_text())]


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_the_linked_file_exists(page: str, link: str) -> None:
    assert (ROOT / page).parent.joinpath(link).exists()


FILE = re.compile(r"`((?:[\w]+/)+\w+\.py)`")
FILES = [
    (page, file)
    for page, root in (("docs/rooms.md", ""), ("CONTRIBUTING.md", ""), ("tests/README.md", "tests/"))
    for file in (f"{root}{each}" for each in FILE.findall((ROOT / page).read_text()))
]


@pytest.mark.parametrize(("page", "file"), FILES)
def test_a_file_that_a_page_names_exists(page: str, file: str) -> None:
    assert (ROOT / file).exists()


REFERENCE = re.compile(r"https://flower\.ai/docs/framework/ref-api/(.+?)\.html")
NAMED = {
    (str(page.relative_to(ROOT)), name)
    for page in (ROOT / "docs").rglob("*.md")
    if "_build" not in page.parts
    for name in REFERENCE.findall(page.read_text())
}


@pytest.mark.parametrize(("page", "name"), sorted(NAMED))
def test_what_is_linked_in_flowers_reference_is_there_in_flower(page: str, name: str) -> None:
    assert resolve_name(name).__name__ == name.rpartition(".")[2]


def test_flowers_classes_are_linked() -> None:
    assert {"flwr.serverapp.ServerApp", "flwr.clientapp.ClientApp"} <= {name for _, name in NAMED}

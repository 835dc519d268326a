"""Links of the pages that Sphinx does not see lead to files that are there."""

import re
from pkgutil import resolve_name

from .pages import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")
FILE = re.compile(r"`((?:[\w]+/)+\w+\.py)`")
REFERENCE = re.compile(r"https://flower\.ai/docs/framework/ref-api/(.+?)\.html")


def test_linked_files_exist() -> None:
    for page in PAGES:
        links = LINK.findall((ROOT / page).read_text())
        assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == [], page


def test_files_that_pages_name_exist() -> None:
    for page, root in (("docs/rooms.md", ""), ("CONTRIBUTING.md", ""), ("tests/README.md", "tests/")):
        names = FILE.findall((ROOT / page).read_text())
        assert [name for name in names if not (ROOT / root / name).exists()] == [], page


def test_what_is_linked_in_flowers_reference_is_there_in_flower() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    named = {name for page in pages for name in REFERENCE.findall(page.read_text())}
    assert {"flwr.serverapp.ServerApp", "flwr.clientapp.ClientApp"} <= named
    assert [name for name in named if resolve_name(name).__name__ != name.rpartition(".")[2]] == []

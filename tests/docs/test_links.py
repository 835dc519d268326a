"""Links of the pages that Sphinx does not see lead to files that are there."""

import re

import pytest

from .pages import ROOT

PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")
LINKS = [(page, link) for page in PAGES for link in LINK.findall((ROOT / page).read_text())]


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_the_linked_file_exists(page: str, link: str) -> None:
    assert (ROOT / page).parent.joinpath(link).exists()

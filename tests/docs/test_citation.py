"""What the citation says is what pyproject.toml says."""

import re
import tomllib

from .pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = (ROOT / "CITATION.cff").read_text()


def test_the_version_is_the_same_everywhere() -> None:
    (cited,) = re.findall(r"^version: (.+)$", CITATION, re.MULTILINE)
    (bibtex,) = re.findall(r"version = \{(.+)\}", (ROOT / "docs" / "citation.bib").read_text())
    assert cited == bibtex == PROJECT["version"]
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_licence_and_keywords_are_the_projects() -> None:
    assert f"license: {PROJECT['license']}\n" in CITATION
    assert re.findall(r"^  - (?!name)(.+)$", CITATION, re.MULTILINE) == PROJECT["keywords"]

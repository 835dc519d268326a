"""What pages, the citation and links say of the project is what its own files say."""

import csv
import re
import tomllib
from pkgutil import resolve_name

import pytest

from benchmarks.methods import GIVEN
from docs.hospitals import FEW, HEADINGS, PICTURE, TABLE
from fairbloom.experiments.arms import parse_arms
from fairbloom.experiments.recipe import load_recipe
from fairbloom.server.run_folder.csv_rows import ClientTable, round_columns
from fairbloom.server.run_folder.files import ENTRIES
from fairbloom.strategies import SCAFFOLD, VRed

from .pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = (ROOT / "CITATION.cff").read_text()
DATA = ROOT / "docs" / "data"
MEASURED, RUNS = ((ROOT / "docs" / name).read_text() for name in ("measured.md", "runs.md"))


# The project --------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere() -> None:
    (cited,) = re.findall(r"^version: (.+)$", CITATION, re.MULTILINE)
    (bibtex,) = re.findall(r"version = \{(.+)\}", (ROOT / "docs" / "citation.bib").read_text())
    assert cited == bibtex == PROJECT["version"]
    assert PROJECT["version"] in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_pages_say_what_writes_the_generated_ones(page: str) -> None:
    assert "`make docs` writes into" in " ".join((ROOT / page).read_text().split())


def test_licence_and_keywords_are_the_projects() -> None:
    bib = (ROOT / "docs" / "citation.bib").read_text()
    (released,) = re.findall(r"^date-released: (\d{4})-\d\d-\d\d$", CITATION, re.MULTILINE)
    assert f"year    = {{{released}}}" in bib
    assert f"repository-code: {PROJECT['urls']['Source']}\n" in CITATION
    assert f"url     = {{{PROJECT['urls']['Source']}}}" in bib
    assert f"license: {PROJECT['license']}\n" in CITATION
    assert re.findall(r"^  - (?!name)(.+)$", CITATION, re.MULTILINE) == PROJECT["keywords"]


def test_the_page_on_the_installation_has_every_extra() -> None:
    """And says which of them `all` leaves out; those of images and devices it explains below its
    table."""
    rows = re.findall(
        r"^\| (`fairbloom\[.+?) \| (.+) \|$",
        (ROOT / "docs" / "install.md").read_text(),
        re.MULTILINE,
    )
    listed = {name: what for cell, what in rows for name in re.findall(r"\[(\w+)\]", cell)}
    extras = PROJECT["optional-dependencies"]
    part_of_all = set(re.findall(r"\w+", extras["all"][0])) - {"fairbloom"}
    assert listed.keys() == extras.keys() - {"client", "server"}
    assert {name for name, what in listed.items() if "not part of `all`" not in what} == {
        "all",
        *part_of_all,
    }


# Run folders --------------------------------------------------------------------------------------


def test_the_table_of_files_has_those_that_are_declared() -> None:
    names = re.findall("^`([^/`]+)", (DATA / "run-folder.csv").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(entry.name for entry in ENTRIES)
    assert ":file: data/run-folder.csv\n" in RUNS


def test_the_page_names_every_column() -> None:
    """Those of the measures of a score are in a table of their own."""
    of_clients = ClientTable(validated=True, personal=True, disparity=True).columns
    of_rounds = (*round_columns(VRed(defence="nnm")), *round_columns(SCAFFOLD()))
    assert {*of_clients, *(each for each in of_rounds if not each.startswith("test_"))} <= {
        *re.findall(r"`(\w+)`", RUNS)
    }


# Links that Sphinx does not see -------------------------------------------------------------------


def test_linked_files_exist(subtests: pytest.Subtests) -> None:
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        with subtests.test(page=page):
            links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", (ROOT / page).read_text())
            assert [
                link for link in links if not (ROOT / page).parent.joinpath(link).exists()
            ] == [], page


def test_files_that_pages_name_exist(subtests: pytest.Subtests) -> None:
    for page, root in (
        ("docs/rooms.md", ""),
        ("CONTRIBUTING.md", ""),
        ("tests/README.md", "tests/"),
    ):
        with subtests.test(page=page, root=root):
            names = re.findall(r"`((?:[\w]+/)+\w+\.py)`", (ROOT / page).read_text())
            assert [name for name in names if not (ROOT / root / name).exists()] == [], page


def test_what_is_linked_in_flowers_reference_is_there_in_flower() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    reference = r"https://flower\.ai/docs/framework/ref-api/(.+?)\.html"
    named = {name for page in pages for name in re.findall(reference, page.read_text())}
    assert {"flwr.serverapp.ServerApp", "flwr.clientapp.ClientApp"} <= named
    assert [name for name in named if resolve_name(name).__name__ != name.rpartition(".")[2]] == []


# Measurements -------------------------------------------------------------------------------------


def test_the_table_of_what_clients_keep_has_each_arm() -> None:
    with (DATA / "own.csv").open(newline="") as file:
        names = [row["method"] for row in csv.DictReader(file)]
    labels = [arm.label for arm in parse_arms(GIVEN["own"].arms, GIVEN["own"].settings)]
    assert [name.replace(", personal)", ")") for name in names] == labels
    assert ":file: data/own.csv\n" in MEASURED


def test_the_pages_have_the_hospitals_rows_and_picture() -> None:
    with TABLE.open(newline="") as file:
        heads, *rows = csv.reader(file)
    recipe = load_recipe("heart-disease")
    assert tuple(heads) == HEADINGS
    assert [row[0] for row in rows] == [recipe.name_of(row) for row in recipe.rows]
    assert f":file: data/hospitals/{TABLE.name}" in MEASURED
    assert {*FEW} <= {row[0] for row in rows}
    assert f"images/{PICTURE.name}" in (ROOT / "docs" / "index.md").read_text()
    assert PICTURE.exists()

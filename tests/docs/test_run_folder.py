"""The page on run folders has the files that are declared, and the columns of its tables."""

import re

from fairbloom.server.run_folder.files import ENTRIES
from fairbloom.server.run_folder.rows import ClientTable, round_columns
from fairbloom.strategies import SCAFFOLD, VRed
from tests.checkout import ROOT

PAGE = ROOT / "docs" / "runs.md"


def test_the_table_of_files_has_those_that_are_declared() -> None:
    names = re.findall("^`([^/`]+)", (ROOT / "docs" / "data" / "run-folder.csv").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(entry.name for entry in ENTRIES)
    assert ":file: data/run-folder.csv\n" in PAGE.read_text()


def test_the_page_names_every_column() -> None:
    """Those of the measures of a score are in a table of their own."""
    of_clients = ClientTable(validated=True, personal=True, disparity=True).columns
    of_rounds = (*round_columns(VRed(defence="nnm")), *round_columns(SCAFFOLD()))
    named = re.findall(r"`(\w+)`", PAGE.read_text())
    assert {*of_clients, *(each for each in of_rounds if not each.startswith("test_"))} <= {*named}

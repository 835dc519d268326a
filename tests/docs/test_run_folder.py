"""The page on run folders has the files that are declared, and the columns of its tables."""

import re

from docs.run_folder import PAGE, TABLE, format_table
from fairbloom.server.run_folder.files import ENTRIES, Entry
from fairbloom.server.run_folder.rows import ClientTable, round_columns
from fairbloom.strategies import SCAFFOLD, VRed


def test_the_table_of_files_is_the_declared_one() -> None:
    """`make settings` writes it."""
    assert TABLE.read_text() == format_table()
    assert ":file: data/run-folder.csv\n" in PAGE.read_text()


def test_a_file_that_is_added_is_in_the_table() -> None:
    added = Entry(name="sizes.json", holds="how large clients are")
    assert format_table((*ENTRIES, added)) == f"{TABLE.read_text()}`sizes.json`,how large clients are\n"


def test_the_page_names_every_column() -> None:
    """Those of the measures of a score are in a table of their own."""
    of_clients = ClientTable(validated=True, personal=True, disparity=True).columns
    of_rounds = (*round_columns(VRed(defence="nnm")), *round_columns(SCAFFOLD()))
    named = re.findall(r"`(\w+)`", PAGE.read_text())
    assert {*of_clients, *(each for each in of_rounds if not each.startswith("test_"))} <= {*named}

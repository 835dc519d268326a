"""The page on run folders has the files that are declared."""

from pathlib import Path

from docs.run_folder import PAGE, format_rows, update_page
from fairbloom.server.run_folder.files import ENTRIES, Entry


def test_the_table_of_files_is_the_declared_one() -> None:
    """`make settings` writes it."""
    page = PAGE.read_text()
    assert update_page(page) == page
    assert format_rows() in page


def test_a_file_that_is_added_is_on_the_page(tmp_path: Path) -> None:
    added = Entry(name="sizes.json", holds="how large clients are")
    rows = format_rows((*ENTRIES, added))
    assert rows.endswith("| `sizes.json` | how large clients are |\n")
    head, _, rest = PAGE.read_text().partition(format_rows())
    outdated = head + "| `gone.json` | nothing |\n" + rest
    assert update_page(outdated) == PAGE.read_text()

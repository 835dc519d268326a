"""The table of files on the page on runs, written from where each file is declared.

`make settings` writes it.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from fairbloom.server.run_folder.files import ENTRIES, Entry

PAGE = Path(__file__).with_name("runs.md")
TABLE = Path(__file__).parent / "data" / "run-folder.csv"


def format_table(entries: Iterable[Entry] = ENTRIES) -> str:
    """Return the table as the text of a CSV file: a row for each file, with its name and what it holds."""
    rows = csv.writer(text := io.StringIO(), lineterminator="\n")
    rows.writerow(["file", "what it holds"])
    rows.writerows([f"`{entry.shown or entry.name}`", entry.holds] for entry in entries)
    return text.getvalue()


if __name__ == "__main__":
    TABLE.write_text(format_table())

"""The table of files on the page on run folders, written from where each file is declared.

`make settings` writes it.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from fairbloom.server.run_folder.files import ENTRIES, Entry

PAGE = Path(__file__).with_name("run-folder.md")
HEAD = "| file | what it holds |\n|---|---|\n"


def format_rows(entries: Iterable[Entry] = ENTRIES) -> str:
    """Return a line of the table for each file: its name, and what it holds."""
    return "".join(f"| `{entry.shown or entry.name}` | {entry.holds} |\n" for entry in entries)


def update_page(page: str) -> str:
    """Return the text of the page with its table as it is now; the table ends at an empty line."""
    return re.sub(rf"(?<={re.escape(HEAD)})(.+\n)+", lambda _: format_rows(), page)


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))

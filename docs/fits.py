"""The table of what fits with what, written from what methods need and what options change.

`make settings` writes it.
"""

import csv
import io
from pathlib import Path

from fairbloom.rounds.fits import table
from fairbloom.strategies import METHODS

from .toy import strategy

PAGE = Path(__file__).with_name("training.md")
TABLE = Path(__file__).parent / "data" / "fits.csv"
HEAD = "<!-- written by docs/fits.py -->\n"


def format_table() -> tuple[str, str]:
    """Return the table as the text of a CSV file, and its reasons as a list in Markdown."""
    methods = [strategy(name) for name in METHODS]
    needs = {type(each).__name__: (each.all_needs, each.lost_to_server_optimizers) for each in methods}
    rows, reasons = table(needs)
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    return text.getvalue(), "".join(f"{number}. {reason}\n" for number, reason in enumerate(reasons, start=1))


def update_page(page: str) -> str:
    """Return the text of the page with its reasons as they are now; they are the end of the page."""
    return f"{page.partition(HEAD)[0]}{HEAD}\n{format_table()[1]}"


if __name__ == "__main__":
    TABLE.write_text(format_table()[0])
    PAGE.write_text(update_page(PAGE.read_text()))

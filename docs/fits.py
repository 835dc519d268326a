"""The table of what fits with what, written from what methods need and what options change.

`make settings` writes it.
"""

from pathlib import Path

from fairbloom.rounds.fits import table
from fairbloom.strategies import METHODS

from .toy import strategy

PAGE = Path(__file__).with_name("fits.md")
HEAD = "<!-- written by docs/fits.py -->\n"


def update_page(page: str) -> str:
    """Return the text of the page with its table as it is now; the table is the end of the page."""
    methods = [strategy(name) for name in METHODS]
    needs = {type(each).__name__: (each.all_needs, each.lost_to_server_optimizers) for each in methods}
    return page.partition(HEAD)[0] + HEAD + "\n" + "\n".join(table(needs)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))

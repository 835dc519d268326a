"""Write the table of methods and compatible options, from their own declarations.

`make settings` runs it.
"""

import csv
import io
from collections.abc import Collection, Mapping
from pathlib import Path

from fairbloom.rounds.compatibility import (
    DRAW,
    OTHER_STEPS,
    SERVER_MOMENTUM,
    WEIGHT_DECAY,
    WEIGHTING,
    Option,
    find_conflict,
)
from fairbloom.rounds.options import CHANGING
from fairbloom.strategies import METHODS

from .toy import strategy

PAGE = Path(__file__).with_name("training.md")
TABLE = Path(__file__).parent / "data" / "fits.csv"
HEAD = "<!-- written by docs/compatibility.py -->\n"

ADAPTIVE_SERVER = Option('server_optimizer="adam"')

OPTIONS = (
    WEIGHTING,
    SERVER_MOMENTUM,
    ADAPTIVE_SERVER,
    CHANGING["control_variates"],
    OTHER_STEPS,
    WEIGHT_DECAY,
    Option("proximal_mu"),
    Option("personal_lambda"),
    CHANGING["personal_parameters"],
    CHANGING["fine_tune_epochs"],
    DRAW,
    CHANGING["wire_dtype"],
)
"""The options in the order of the table's columns."""


def table(methods: Mapping[str, tuple[Collection[str], str]]) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, heads first, and the reasons that its cells number from 1.

    `methods` has each method's needs, and its property that a server optimizer destroys ("": none).
    """
    reasons: dict[str, int] = {}

    def cell(needs: Collection[str], lost: str, option: Option) -> str:
        need = find_conflict(needs, option)
        if need is not None:
            answer = "no"
            reason = f"No: it {need.why}."
        elif lost and option in (SERVER_MOMENTUM, ADAPTIVE_SERVER):
            answer = "yes"
            reason = f"Yes, but this no longer holds: {lost}."
        else:
            return "yes"
        return f"{answer} ({reasons.setdefault(reason, len(reasons) + 1)})"

    rows = [
        [name, *(cell(needs, lost, option) for option in OPTIONS)]
        for name, (needs, lost) in methods.items()
    ]
    names = [option.name if " " in option.name else f"`{option.name}`" for option in OPTIONS]
    return [["method", *names], *rows], [*reasons]


def format_table() -> tuple[str, str]:
    """Return the table as CSV, and its reasons as a Markdown list."""
    methods = [strategy(name) for name in METHODS]
    needs = {
        type(each).__name__: (each.all_needs, each.lost_to_server_optimizers) for each in methods
    }
    rows, reasons = table(needs)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    lines = [f"{number}. {reason}\n" for number, reason in enumerate(reasons, start=1)]
    return text.getvalue(), "".join(lines)


def update_page(page: str) -> str:
    """Return the text of the page with its end, the reasons, updated."""
    return f"{page.partition(HEAD)[0]}{HEAD}\n{format_table()[1]}"


if __name__ == "__main__":
    TABLE.write_text(format_table()[0])
    PAGE.write_text(update_page(PAGE.read_text()))

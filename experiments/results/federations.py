"""Which kind of federation it is: how alike clients' updates are under FedAvg, and elsewhere."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairbloom.rounds.aggregation import COSINE_ROUNDS, COSINES

from .run import Run
from .tables import is_shown

# The columns of rounds.csv with quartiles and mean of the cosines, and of TABLE.
COLUMNS = tuple(report.replace("-", "_") for report in COSINES)

# The federations of the page, with these columns: `python -m docs.which_method` writes it.
TABLE = Path(__file__).with_name("federations.csv")

PAGE = "https://github.com/fairbloom/fairbloom/blob/main/docs/which-method.md"


class Cosines(NamedTuple):
    """Lower quartile, mean and upper quartile of the cosines between clients' updates."""

    low: float
    mean: float
    high: float

    def __str__(self) -> str:
        """Return them as text, with two decimals."""
        low, mean, high = (f"{each + 0.0:.2f}".replace("-0.00", "0.00") for each in self)
        return f"{mean} (quartiles {low} and {high})"


@dataclass(frozen=True)
class Federation:
    """How alike clients' updates are, and the nearest of `known_federations`, "" without any."""

    cosines: Cosines
    nearest: str

    def __str__(self) -> str:
        """Return it as a line."""
        line = (
            "Kind of federation: under FedAvg, the mean cosine between clients' updates in the"
            f" first {COSINE_ROUNDS} rounds is {self.cosines}"
        )
        if self.nearest:
            known = known_federations()[self.nearest]
            line += f"; nearest is {self.nearest} with {known}, of those on {PAGE}"
        return f"{line}."


def known_federations() -> dict[str, Cosines]:
    """Return the page's federations with their cosines, by name."""
    with TABLE.open(newline="") as file:
        rows = csv.DictReader(file)
        return {row["workload"]: Cosines(*(float(row[name]) for name in COLUMNS)) for row in rows}


def find_federation(runs: Sequence[Run]) -> Federation | None:
    """Return what FedAvg's runs, one a seed, measured; None if they measured nothing.

    Cosines are means over the rounds of all seeds. The nearest federation has the smallest distance
    of the three numbers.
    """
    tables = [run.rounds[[*COLUMNS]] for run in runs if {*COLUMNS} <= {*run.rounds}]
    rows = [row for table in tables for row in table.to_numpy().tolist() if all(map(is_shown, row))]
    if not rows:
        return None
    cosines = Cosines(*(math.fsum(column) / len(rows) for column in zip(*rows, strict=True)))
    known = known_federations()
    nearest = min(known, key=lambda name: math.dist(known[name], cosines), default="")
    return Federation(cosines, nearest)

"""Cells of tables: how a number, a difference and a spread are written, once for all media."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fairbloom.protocol.scores import Score
from fairbloom.text import HUGE, MAX_DECIMALS, round_to, text_if

from ..render.page import Cell, Tone
from ..results.differences import Difference
from ..results.noise import Estimate
from ..results.tables import is_shown

# Marks a clear difference, also where there are no colours.
CLEAR = "*"

# A cell without a number.
NONE = Cell("–", tone="quiet")


@dataclass(frozen=True)
class Digits:
    """How the numbers of a table are written, all with the same `Score.decimals_of`."""

    decimals: int

    @classmethod
    def of(cls, score: Score, values: Iterable[float]) -> "Digits":
        """Return three digits of the largest number; one decimal of percentages."""
        return cls(score.decimals_of(filter(is_shown, values)))

    def number(self, value: float, sign: str = "") -> str:
        """Return a number, with its sign where that is "+"; what rounds to zero has no minus.

        A dash if it is not finite, and few digits of one that is huge or tiny.
        """
        if not math.isfinite(value):
            return NONE.text
        is_tiny = self.decimals == MAX_DECIMALS and 0.0 < abs(value) < 10.0 ** (2 - MAX_DECIMALS)
        if is_tiny or abs(value) >= HUGE:
            return f"{value:{sign}.3g}"
        return round_to(value, self.decimals, sign)

    def cell(self, value: float | None, reach: float | None = None) -> Cell:
        """Return a cell of a number, with ± its reach or deviation where it has one.

        A dash for none and for one that cannot be shown.
        """
        if value is None or not is_shown(value):
            return NONE
        text = self.number(value)
        return Cell(text if reach is None else f"{text} ±{self.number(reach)}", float(value))

    def estimate(self, found: Estimate, sign: str = "") -> Cell:
        """Return a number with its interval, where it has one; a dash if it cannot be shown."""
        if not is_shown(found.value):
            return NONE
        interval = text_if(
            found.above > 0.0,
            f" ({self.number(found.value - found.below)} to"
            f" {self.number(found.value + found.above)})",
        )
        return Cell(self.number(found.value, sign) + interval, float(found.value))

    def difference(self, found: Difference) -> Cell:
        """Return a difference with its interval, where it has one."""
        return self.estimate(
            Estimate(found.mean, found.mean - found.low, found.high - found.mean), "+"
        )


def tone_of(difference: Difference) -> Tone:
    """Return whether a significant difference is for the better or the worse.

    "" where it is not significant.
    """
    if not difference.significant:
        return ""
    return "better" if difference.mean > 0.0 else "worse"


def mark_significant(cell: Cell, difference: Difference) -> Cell:
    """Return a cell, marked and coloured for a significant gain or loss."""
    if difference.significant:
        return replace(cell, text=f"{CLEAR} {cell.text}", tone=tone_of(difference))
    return cell


def about_worst(title: str, seeds: int) -> str:
    """Return that the worst client of several seeds is each seed's own, "" for other titles."""
    return text_if(
        "worst client" in title and seeds > 1,
        " Worst client: each seed's own worst score, averaged over the seeds.",
    )

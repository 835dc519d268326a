"""A published experiment that was run: what was measured beside what was printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.protocol.settings import Mark, Value, marked
from fairbloom.server.settings import may_differ

from ..recipe import Recipe
from .outcome import Outcome
from .presentation import Shown
from .run import Run


@dataclass(frozen=True)
class Reproduction(Shown):
    """What was measured beside what was printed.

    Attributes
    ----------
    recipe
        What is reproduced.
    outcomes
        What came out, row by row.
    seeds
        The seeds of each row.
    folder
        Where table, figure and runs lie.
    overrides
        The settings that the user has set for all runs.
    quick
        Whether the runs are cut short.
    """

    recipe: Recipe
    outcomes: Sequence[Outcome]
    seeds: Sequence[int]
    folder: Path
    overrides: Mapping[str, Value]
    quick: bool

    @property
    def whole(self) -> bool:
        """Whether it has all rows of the recipe."""
        return len(self.outcomes) == len(self.recipe.cases())

    @property
    def printed(self) -> bool:
        """Whether there are printed numbers to compare with: a study of one's own has none."""
        return any(outcome.case.published for outcome in self.outcomes)

    @property
    def comparable(self) -> bool:
        """Whether the runs are as the recipe has them: neither cut short nor with other settings."""
        free = {*may_differ(finished=True), *marked(Mark.PLACE, Mark.ROUNDING)}
        return not self.quick and not self.overrides.keys() - free

    def runs(self, index: int) -> list[Run]:
        """Return the finished runs of a row, one a seed."""
        return list(self.outcomes[index].runs.values())

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "source": self.recipe.source,
            "comparable": self.comparable,
            "quick": self.quick,
            "set": dict(self.overrides),
            "seeds": list(self.seeds),
            "rows": [outcome.as_json for outcome in self.outcomes],
            "notes": self.recipe.notes,
            "folder": str(self.folder),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results.csv: one a row of the table and measure."""
        return [row for outcome in self.outcomes for row in outcome.rows()]

    def __repr__(self) -> str:
        """Return the reproduction in a line."""
        rows, seeds = len(self.outcomes), len(self.seeds)
        return f"Reproduction({str(self.folder)!r}: {self.recipe.title}; {rows} rows, {seeds} seeds)"

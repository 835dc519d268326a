"""What came out of a row of a recipe, beside what was printed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value

from ..arms import format_value
from ..recipe import Case, Point, Printed, Recipe
from .comparison import mean_and_deviation
from .groups import ALL
from .measures import CLIENT, GAP, Served, find_measure, parse_gap
from .run import Run, final_of

ROUNDING = 1e-9
"""What floating-point numbers may be off, so that a difference of exactly the tolerance agrees."""

Spread = tuple[float, float]
"""Mean and sample standard deviation over seeds."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a row.

    Attributes
    ----------
    case
        The row.
    point
        What its grid has found; nothing where there is no grid, or no point of it is finished.
    runs
        The finished runs there, by their seeds.
    measured
        The measures over the seeds that are finished; empty where none is, or with a fault.
    unfinished
        The folders of the runs that are missing, of the grid too; those that failed are not counted.
    fault
        Why a run failed or could not be measured; "" where all went well.
    """

    case: Case
    point: Point
    runs: Mapping[int, Run]
    measured: Mapping[str, Spread]
    unfinished: frozenset[Path] = frozenset()
    fault: str = ""

    @classmethod
    def of(
        cls, case: Case, point: Point, runs: Mapping[int, Run], unfinished: frozenset[Path], fault: str
    ) -> "Outcome":
        """Measure the runs of a row; what cannot be measured is a fault of this row, and ends no other."""
        measured: Mapping[str, Spread] = {}
        try:
            by_seed = [] if fault else [measures_of(run, case) for run in runs.values()]
            measured = {m: mean_and_deviation([each[m] for each in by_seed]) for m in by_seed[0]} if by_seed else {}
        except FairbloomError as error:
            fault = str(error)
        except Exception as error:  # a mistake of this program, which must not take hours of other rows with it
            fault = f"it cannot be measured: {type(error).__name__}: {error}"
        return cls(case, point, runs, measured, unfinished, fault)

    @property
    def agreements(self) -> Mapping[str, bool]:
        """Whether what was measured agrees, by measure that was printed; empty where runs are missing."""
        if not self.measured or self.unfinished:
            return {}
        recipe, found = self.case.recipe, self.measured
        return {
            measure: agree(recipe, measure, printed, found[measure], len(self.runs))
            for measure, printed in self.case.published.items()
        }

    @property
    def agrees(self) -> bool | None:
        """Whether all measures agree that the recipe judges by; None where none of them was printed and measured."""
        judged, agreements = self.case.recipe.judged or self.case.recipe.measures, self.agreements
        found = [agreements[measure] for measure in judged if measure in agreements]
        return all(found) if found else None

    @property
    def parameters(self) -> Mapping[str, Value]:
        """Its settings beside those that rows share, with what the grid has found."""
        return self.case.parameters(self.point)

    @property
    def name(self) -> str:
        """What tables call it: its label with its parameters."""
        return self.case.name_at(self.point)

    @property
    def seconds(self) -> float:
        """How long the rounds of the finished runs took to compute, together."""
        return float(sum(run.rounds["seconds"].sum() for run in self.runs.values()))

    @property
    def as_json(self) -> dict[str, Any]:
        """The row as --json prints it."""
        published = self.case.published
        return {
            "method": self.case.row.label,
            "parameters": dict(self.parameters),
            "published": {measure: number.mean for measure, number in published.items()},
            "published_spread": {m: number.spread for m, number in published.items() if number.spread is not None},
            "measured": {measure: mean for measure, (mean, _) in self.measured.items()},
            "spread": {measure: spread for measure, (_, spread) in self.measured.items()},
            "agrees": self.agrees,
            "disagrees_in": [measure for measure, agrees in self.agreements.items() if not agrees],
            "note": self.case.row.note,
            "fault": self.fault,
            "seeds": len(self.runs),
            "unfinished": len(self.unfinished),
            "seconds": round(self.seconds, 3),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results.csv: one a measure."""
        about: dict[str, Any] = {
            "method": self.case.row.label,
            "parameters": " ".join(f"{key}={format_value(value)}" for key, value in self.parameters.items()),
        }
        rows = []
        for measure in self.case.recipe.measures:
            printed = self.case.published.get(measure)
            mean, spread = self.measured.get(measure, ("", ""))
            numbers = {
                "measure": measure,
                "published": "" if printed is None else printed.mean,
                "published_spread": "" if printed is None or printed.spread is None else printed.spread,
                "measured": mean,
                "spread": spread,
                "agrees": {True: "yes", False: "no", None: ""}[self.agreements.get(measure)],
                "seeds": len(self.runs),
            }
            rows.append(about | numbers)
        return rows


def agree(recipe: Recipe, measure: str, printed: Printed, found: Spread, seeds: int) -> bool:
    """Return whether a measure is within two combined standard errors of what was printed, or within a tolerance.

    Where no spread was printed, or not over how many seeds, it may differ by one percentage point, or by 0.01 of what
    is no percentage. A single seed is assumed to have the printed spread.
    """
    mean, spread = found
    if printed.spread is None or not recipe.published_seeds:
        most = 1.0 if find_measure(measure).unit else 0.01
    else:
        here = printed.spread if seeds == 1 else spread
        error = math.hypot(printed.spread / math.sqrt(recipe.published_seeds), here / math.sqrt(seeds))
        most = 2.0 * error
    return abs(printed.mean - mean) <= max(most, recipe.tolerance.get(measure, 0.0)) + ROUNDING


def measures_of(run: Run, case: Case) -> dict[str, float]:
    """Return the measures of a row's run; raise FairbloomError where it lacks one."""
    evaluated = case.row.evaluated
    values, groups = scores_of(run, evaluated), run.by_group(evaluated)
    served = Served(values, run.score, run.test_examples(hostile=True), groups)
    found = {measure: find_measure(measure).of(served) for measure in case.recipe.measures}
    for measure in (each for each, value in found.items() if math.isnan(value) and each.startswith((CLIENT, GAP))):
        if measure.startswith(GAP):
            _, client = parse_gap(measure)
            if groups is None:
                say = "has no groups: name them, as the setting csv.group = 'sex' does"
            else:
                say = (
                    f"has no such gap: of {client or ALL} there are gaps in "
                    f"{', '.join(groups.sizes(client)) or 'nothing'}, and {', '.join(groups.clients) or 'no client'} "
                    "report groups"
                )
        else:
            say = f"has no client of that name: there are {', '.join(values)}"
        raise FairbloomError(f"{measure}: {run.folder} {say}")
    return found


def scores_of(run: Run, evaluated: str) -> dict[str, float]:
    """Return each client's score under the final model that a row evaluates: of attackers too, as papers print them."""
    if not (values := run.final(model=evaluated, hostile=True)):
        if evaluated == "global":
            return final_of(run)  # which raises
        raise FairbloomError(
            f"{run.folder} has no personal models: leave evaluated out, or take a method that has some"
        )
    return values

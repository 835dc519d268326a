"""A published experiment that was run: what was measured beside what was printed."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Mark, Value, marked
from fairbloom.server.settings import may_differ

from ..arms import Arm, format_value
from ..recipe import Printed, Recipe, Row
from ..study import Study
from .differences import mean_and_deviation
from .measures import CLIENT, GAP, ClientScores, find_measure
from .presentation import Shown
from .run import OpenedRuns, Run, final_of
from .search import choose, judge_arms

ROUNDING = 1e-9
"""What floating-point numbers may be off, so that a difference of exactly the tolerance agrees."""

Spread = tuple[float, float]
"""Mean and sample standard deviation over seeds."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a row of a recipe.

    Attributes
    ----------
    row
        The row.
    name
        What tables call it: its label with its parameters.
    parameters
        Its settings beside those that rows share, with what its grid has found.
    published
        The numbers that were printed, by measure.
    runs
        The finished runs of the arm that its grid has found, by their seeds.
    measured
        The measures over the seeds that are finished; empty where none is, or with a fault.
    unfinished
        The folders of the runs that are missing, of the grid too; those that failed are not
        counted.
    fault
        Why a run failed or could not be measured; "" where all went well.
    """

    row: Row
    name: str
    parameters: Mapping[str, Value]
    published: Mapping[str, Printed]
    runs: Mapping[int, Run]
    measured: Mapping[str, Spread]
    unfinished: frozenset[str] = frozenset()
    fault: str = ""

    @property
    def seconds(self) -> float:
        """How long the rounds of the finished runs took to compute, together."""
        return float(sum(run.rounds["seconds"].sum() for run in self.runs.values()))


@dataclass(frozen=True)
class Reproduction(Shown):
    """What was measured beside what was printed.

    Attributes
    ----------
    recipe
        What is reproduced.
    study
        Its runs: the rows, the seeds, the settings that the user has set, and whether the runs are
        cut short.
    outcomes
        What came out, row by row.
    folder
        Where table, figure and runs lie.
    """

    recipe: Recipe
    study: Study
    outcomes: Sequence[Outcome]
    folder: Path

    @property
    def whole(self) -> bool:
        """Whether it has all rows of the recipe."""
        return len(self.outcomes) == len(self.recipe.rows)

    @property
    def printed(self) -> bool:
        """Whether there are printed numbers to compare with: a study of one's own has none."""
        return any(outcome.published for outcome in self.outcomes)

    @property
    def comparable(self) -> bool:
        """Whether the runs are as the recipe has them: neither cut short nor with other settings."""
        free = {*may_differ(finished=True), *marked(Mark.PLACE, Mark.ROUNDING)}
        return not self.study.quick and not self.study.overrides.keys() - free

    def runs(self, index: int) -> list[Run]:
        """Return the finished runs of a row, one a seed."""
        return list(self.outcomes[index].runs.values())

    def agreements(self, outcome: Outcome) -> Mapping[str, bool]:
        """Return whether what was measured agrees, by measure that was printed.

        Nothing where runs are missing.
        """
        if not outcome.measured or outcome.unfinished:
            return {}
        return {
            measure: agree(
                self.recipe, measure, printed, outcome.measured[measure], len(outcome.runs)
            )
            for measure, printed in outcome.published.items()
        }

    def agrees(self, outcome: Outcome) -> bool | None:
        """Return whether all measures agree that the recipe judges by.

        None where none was printed and measured.
        """
        found = self.agreements(outcome)
        judged = [
            found[measure]
            for measure in self.recipe.judged or self.recipe.measures
            if measure in found
        ]
        return all(judged) if judged else None

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "source": self.recipe.source,
            "comparable": self.comparable,
            "quick": self.study.quick,
            "set": dict(self.study.overrides),
            "seeds": list(self.study.seeds),
            "rows": [
                {
                    "method": each.row.label,
                    "parameters": dict(each.parameters),
                    "published": {
                        measure: number.mean for measure, number in each.published.items()
                    },
                    "published_spread": {
                        m: of.spread for m, of in each.published.items() if of.spread is not None
                    },
                    "measured": {measure: mean for measure, (mean, _) in each.measured.items()},
                    "spread": {measure: spread for measure, (_, spread) in each.measured.items()},
                    "agrees": self.agrees(each),
                    "disagrees_in": [
                        measure for measure, agrees in self.agreements(each).items() if not agrees
                    ],
                    "note": each.row.note,
                    "fault": each.fault,
                    "seeds": len(each.runs),
                    "unfinished": len(each.unfinished),
                    "seconds": round(each.seconds, 3),
                }
                for each in self.outcomes
            ],
            "notes": self.recipe.notes,
            "folder": str(self.folder),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results.csv: one a row of the table and measure."""
        found = []
        for outcome, measure in itertools.product(self.outcomes, self.recipe.measures):
            printed = outcome.published.get(measure)
            mean, spread = outcome.measured.get(measure, ("", ""))
            row = {
                "method": outcome.row.label,
                "parameters": " ".join(
                    f"{key}={format_value(value)}" for key, value in outcome.parameters.items()
                ),
                "measure": measure,
                "published": "" if printed is None else printed.mean,
                "published_spread": (
                    "" if printed is None or printed.spread is None else printed.spread
                ),
                "measured": mean,
                "spread": spread,
                "agrees": {True: "yes", False: "no", None: ""}[
                    self.agreements(outcome).get(measure)
                ],
                "seeds": len(outcome.runs),
            }
            found.append(row)
        return found

    def __repr__(self) -> str:
        """Return the reproduction in a line."""
        rows = len(self.outcomes)
        seeds = len(self.study.seeds)
        return (
            f"Reproduction({str(self.folder)!r}: {self.recipe.title}; {rows} rows, {seeds} seeds)"
        )


def agree(recipe: Recipe, measure: str, printed: Printed, found: Spread, seeds: int) -> bool:
    """Return whether a measure is within two combined standard errors of what was printed, or within a tolerance.

    Where no spread was printed, or not over how many seeds, it may differ by one percentage point,
    or by 0.01 of what is no percentage. A single seed is assumed to have the printed spread.
    """
    mean, spread = found
    if printed.spread is None or not recipe.published_seeds:
        most = 1.0 if find_measure(measure).unit else 0.01
    else:
        here = printed.spread if seeds == 1 else spread
        most = 2.0 * math.hypot(
            printed.spread / math.sqrt(recipe.published_seeds), here / math.sqrt(seeds)
        )
    return abs(printed.mean - mean) <= max(most, recipe.tolerance.get(measure, 0.0)) + ROUNDING


# From the runs ------------------------------------------------------------------------------------


def read_reproduction(
    recipe: Recipe, study: Study, folder: Path, opened: OpenedRuns | None = None
) -> Reproduction:
    """Return what the finished runs of a study measure, row by row.

    Those that are `opened` are not read again.
    """
    rows = {recipe.name_of(row): row for row in recipe.rows}
    if gone := [name for name in study.groups if name not in rows]:
        raise FairbloomError(
            f"{folder} has a row {gone[0]!r}, and recipe {recipe.name} has none: restore the row,"
            " or reproduce it in another folder (--out)"
        )
    runs = OpenedRuns(study, folder) if opened is None else opened
    outcomes = [
        _read_row(recipe, rows[name], arms, study, runs) for name, arms in study.groups.items()
    ]
    return Reproduction(recipe, study, outcomes, folder)


def seeds_of(recipe: Recipe, arms: Sequence[Arm], study: Study) -> Sequence[int]:
    """Return the seeds with which a row's grid is searched: all of a row without one."""
    return study.seeds if len(arms) == 1 else study.seeds[: recipe.grid_seeds or len(study.seeds)]


def choose_arm(recipe: Recipe, arms: Sequence[Arm], runs: OpenedRuns) -> tuple[Arm | None, str]:
    """Return the best arm of a row.

    None, and why as far as scores say it, where the runs do not tell.
    """
    if len(arms) == 1:
        return arms[0], ""
    measure = find_measure(recipe.criterion)
    seeds = seeds_of(recipe, arms, runs.study)
    by_arm = [[runs.get(arm, seed) for seed in seeds] for arm in arms]
    judged = judge_arms(measure, arms, by_arm)
    scored = next((run.score for by_seed in by_arm for run in by_seed if run is not None), None)
    best = None if scored is None else choose(measure, scored, judged)
    fault = next((f"{each.arm.label}: {each.fault}" for each in judged if each.fault), "")
    return (None, fault) if best is None else (best.arm, "")


def _read_row(
    recipe: Recipe, row: Row, arms: Sequence[Arm], study: Study, opened: OpenedRuns
) -> Outcome:
    """Return what came out of a row.

    What cannot be measured is a fault of this row, and ends no other.
    """
    best, fault = choose_arm(recipe, arms, opened)
    searched = [(arm, seed) for arm in arms for seed in seeds_of(recipe, arms, study)]
    chosen = [] if best is None else [(best, seed) for seed in study.seeds]
    fault = next(
        (reason for key in chosen or searched if (reason := study.failed.get(study.folder(*key)))),
        fault,
    )
    runs = {seed: run for arm, seed in chosen if (run := opened.get(arm, seed)) is not None}
    missing = {study.folder(*key) for key in (*searched, *chosen) if opened.get(*key) is None}
    measured: Mapping[str, Spread] = {}
    try:
        by_seed = (
            []
            if fault
            else [measures_of(run, recipe.measures, row.evaluated) for run in runs.values()]
        )
        measured = (
            {m: mean_and_deviation([each[m] for each in by_seed]) for m in by_seed[0]}
            if by_seed
            else {}
        )
    except FairbloomError as error:
        fault = str(error)
    except (
        Exception
    ) as error:  # a mistake of this program, which must not take hours of other rows with it
        fault = f"it cannot be measured: {type(error).__name__}: {error}"
    tried = {key for point in recipe.points(row) for key in point}
    point = (
        {} if best is None else {key: value for key, value in best.settings.items() if key in tried}
    )
    name = recipe.name_of(row, point)
    parameters = recipe.parameters(row, point)
    unfinished = frozenset(missing - study.failed.keys())
    return Outcome(row, name, parameters, recipe.published(row), runs, measured, unfinished, fault)


def measures_of(run: Run, measures: Sequence[str], evaluated: str) -> dict[str, float]:
    """Return measures of a run under the models that are evaluated.

    Raise FairbloomError where it lacks one.

    Attackers are among the clients, as papers print them.
    """
    if not (values := run.final(model=evaluated, hostile=True)):
        if evaluated == "global":
            final_of(run)  # which raises
        raise FairbloomError(
            f"{run.folder} has no personal models: leave evaluated out, or take a method that has"
            " some"
        )
    served = ClientScores(
        values, run.score, run.test_examples(hostile=True), run.by_group(evaluated)
    )
    found = {measure: find_measure(measure).of(served) for measure in measures}
    for measure, value in found.items():
        if math.isnan(value) and measure.startswith((CLIENT, GAP)):
            raise FairbloomError(f"{measure}: {run.folder} has none under the {evaluated} models")
    return found

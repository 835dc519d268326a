"""A published experiment that was run: the measured numbers next to the printed ones."""

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Mark, Value, marked
from fairbloom.strategies.named import format_value

from ..arms import Arm
from ..recipe import CLAIM, Printed, Recipe, Row
from ..study import Study
from .caveats import SharedData
from .differences import Difference, difference_of, mean_and_deviation
from .measures import CLIENT, GAP, ClientScores, find_measure
from .presentation import Shown
from .run import OpenedRuns, Run, final_of
from .search import choose, judge_arms

# Allowance for rounding, so that a difference of exactly the tolerance agrees.
AGREEMENT_ROUNDING = 1e-9

# Mean and sample standard deviation over seeds.
Spread = tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """The results of a row of a recipe.

    Attributes
    ----------
    row
        The row.
    name
        Its label in tables, with its parameters.
    parameters
        Its own settings, with the chosen point of its grid.
    published
        The numbers that were printed, by measure.
    runs
        The finished runs of the chosen arm, by their seeds.
    by_seed
        The measures of the finished runs, by their seeds; empty with a fault.
    unfinished
        The folders of the missing runs, including the grid's; failed runs are not counted.
    fault
        Why a run failed or could not be measured, "" without a fault.
    """

    row: Row
    name: str
    parameters: Mapping[str, Value]
    published: Mapping[str, Printed]
    runs: Mapping[int, Run]
    by_seed: Mapping[int, Mapping[str, float]]
    unfinished: frozenset[str] = frozenset()
    fault: str = ""

    @cached_property
    def measured(self) -> dict[str, Spread]:
        """The measures over the finished seeds; empty without finished seeds, or with a fault."""
        return {
            measure: mean_and_deviation([measured[measure] for measured in self.by_seed.values()])
            for measure in next(iter(self.by_seed.values()), {})
        }

    @property
    def seconds(self) -> float:
        """The total computing time of the finished runs' rounds."""
        return float(sum(run.rounds["seconds"].sum() for run in self.runs.values()))


@dataclass(frozen=True, repr=False)
class Reproduction(Shown):
    """The measured numbers of a recipe next to the printed ones.

    Attributes
    ----------
    recipe
        The recipe that is reproduced.
    study
        Its runs: the rows, the seeds, the settings that the user has set, and whether the runs are
        cut short.
    outcomes
        The results, row by row.
    folder
        The folder of table, figure and runs.
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
        """Whether there are printed numbers to compare with; a user's study has none."""
        return any(outcome.published for outcome in self.outcomes)

    @property
    def comparable(self) -> bool:
        """Whether the runs are as in the recipe, neither cut short nor with other settings."""
        free = marked(Mark.FREE, Mark.PLACE, Mark.ROUNDING)
        return not self.study.quick and not self.study.overrides.keys() - free

    def agreements(self, outcome: Outcome) -> Mapping[str, bool]:
        """Return whether each printed measure agrees with the runs.

        {} if runs are missing, or if they are not as in the recipe.
        """
        if not outcome.measured or outcome.unfinished or not self.comparable:
            return {}
        return {
            measure: agree(
                self.recipe, measure, printed, outcome.measured[measure], len(outcome.runs)
            )
            for measure, printed in outcome.published.items()
        }

    def agrees(self, outcome: Outcome) -> bool | None:
        """Return whether all measures that the recipe judges by agree.

        None if no such measure was both printed and measured.
        """
        found = self.agreements(outcome)
        judged = [
            found[measure]
            for measure in self.recipe.judged or self.recipe.measures
            if measure in found
        ]
        return all(judged) if judged else None

    @property
    def claims(self) -> dict[str, Difference | None]:
        """By how much each claim of the recipe holds, paired by seed; None if runs miss.

        A claim that does not hold has a negative difference.
        """
        outcomes = {self.recipe.name_of(outcome.row): outcome for outcome in self.outcomes}
        found = dict[str, Difference | None]()
        for claim in self.recipe.claims:
            one, direction, measure, other = CLAIM.findall(claim)[0]
            first = outcomes[one].by_seed if one in outcomes else {}
            second = outcomes[other].by_seed if other in outcomes else {}
            sign = 1.0 if direction == "higher" else -1.0
            gains = [
                (first[seed][measure] - values[measure]) * sign
                for seed, values in second.items()
                if seed in first
            ]
            found[claim] = None
            if gains and all(map(math.isfinite, gains)):
                found[claim] = difference_of(
                    gains, test_share=SharedData.of([*outcomes[one].runs.values()]).test_share
                ).untested
        return found

    @property
    def as_json(self) -> dict[str, Any]:
        """The output of --json."""
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "source": self.recipe.source,
            "comparable": self.comparable,
            "quick": self.study.quick,
            "set": dict(self.study.overrides),
            "seeds": list(self.study.seeds),
            "rows": [self._row_as_json(outcome) for outcome in self.outcomes],
            "claims": {
                claim: found and {"holds": found.mean > 0.0, **found.numbers}
                for claim, found in self.claims.items()
            },
            "notes": self.recipe.notes,
            "folder": str(self.folder),
        }

    def _row_as_json(self, outcome: Outcome) -> dict[str, Any]:
        printed = outcome.published.items()
        spreads = {key: each.spread for key, each in printed if each.spread is not None}
        agreements = self.agreements(outcome).items()
        return {
            "method": outcome.row.label,
            "parameters": dict(outcome.parameters),
            "published": {key: number.mean for key, number in printed},
            "published_spread": spreads,
            "measured": {key: mean for key, (mean, _) in outcome.measured.items()},
            "spread": {key: spread for key, (_, spread) in outcome.measured.items()},
            "agrees": self.agrees(outcome),
            "disagrees_in": [key for key, agrees in agreements if not agrees],
            "note": outcome.row.note,
            "fault": outcome.fault,
            "seeds": len(outcome.runs),
            "unfinished": len(outcome.unfinished),
            "seconds": round(outcome.seconds, 3),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of results.csv: one a row of the table and measure."""
        words = {True: "yes", False: "no", None: ""}
        rows = list[dict[str, Any]]()
        for outcome, measure in itertools.product(self.outcomes, self.recipe.measures):
            printed = outcome.published.get(measure)
            measured, spread = outcome.measured.get(measure, (None, None))
            rows.append(
                {
                    "method": outcome.row.label,
                    "parameters": " ".join(
                        f"{key}={format_value(value)}" for key, value in outcome.parameters.items()
                    ),
                    "measure": measure,
                    "published": getattr(printed, "mean", None),
                    "published_spread": getattr(printed, "spread", None),
                    "measured": measured,
                    "spread": spread,
                    "agrees": words[self.agreements(outcome).get(measure)],
                    "seeds": len(outcome.runs),
                }
            )
        return rows


def agree(recipe: Recipe, measure: str, printed: Printed, found: Spread, seeds: int) -> bool:
    """Return whether a measure agrees with the printed number.

    It agrees within two combined standard errors, or within the recipe's tolerance. Without a
    printed spread or number of seeds it may differ by one percentage point, or by 0.01 if it is not
    a percentage. A single seed is assumed to have the printed spread.
    """
    mean, spread = found
    if printed.spread is None or not recipe.published_seeds:
        most = 1.0 if find_measure(measure).unit else 0.01
    else:
        if seeds == 1:
            spread = printed.spread
        most = 2.0 * math.hypot(
            printed.spread / math.sqrt(recipe.published_seeds), spread / math.sqrt(seeds)
        )
    return (
        abs(printed.mean - mean)
        <= max(most, recipe.tolerance.get(measure, 0.0)) + AGREEMENT_ROUNDING
    )


# From the runs ------------------------------------------------------------------------------------


def read_reproduction(
    recipe: Recipe, study: Study, folder: Path, opened: OpenedRuns | None = None
) -> Reproduction:
    """Return the results of a study's finished runs, row by row.

    Runs that are already `opened` are not read again.
    """
    rows = {recipe.name_of(row): row for row in recipe.rows}
    if gone := [name for name in study.groups if name not in rows]:
        raise FairbloomError(
            f"{folder} has a row {gone[0]!r}, and recipe {recipe.name} has none: restore the row,"
            " or reproduce it in another folder (--out)"
        )
    runs = OpenedRuns(study, folder) if opened is None else opened
    outcomes = list[Outcome]()
    bases: Mapping[int, Run] = {}
    for name, arms in study.groups.items():
        row = rows[name]
        outcomes.append(_read_row(recipe, row, arms, study, runs, bases))
        if row is recipe.rows[0]:
            bases = outcomes[0].runs
    return Reproduction(recipe, study, outcomes, folder)


def seeds_of(recipe: Recipe, arms: Sequence[Arm], study: Study) -> Sequence[int]:
    """Return the seeds with which a row's grid is searched; all seeds for a row without a grid."""
    if len(arms) == 1 or not recipe.grid_seeds:
        return study.seeds
    return study.seeds[: recipe.grid_seeds]


def choose_arm(recipe: Recipe, arms: Sequence[Arm], runs: OpenedRuns) -> tuple[Arm | None, str]:
    """Return the best arm of a row and ""; or None and the reason, "" if it is unknown."""
    if len(arms) == 1:
        return arms[0], ""
    measure = find_measure(recipe.criterion)
    seeds = seeds_of(recipe, arms, runs.study)
    by_arm = [[runs.get(arm, seed) for seed in seeds] for arm in arms]
    judged = judge_arms(measure, arms, by_arm)
    scored = next((run.score for by_seed in by_arm for run in by_seed if run is not None), None)
    best = None if scored is None else choose(measure, scored, judged)
    if best is not None:
        return best.arm, ""
    faults = [f"{each.arm.label}: {each.fault}" for each in judged if each.fault]
    return None, faults[0] if faults else ""


def _read_row(
    recipe: Recipe,
    row: Row,
    arms: Sequence[Arm],
    study: Study,
    opened: OpenedRuns,
    bases: Mapping[int, Run],
) -> Outcome:
    """Return the results of a row; an error in measuring is a fault of this row only.

    `study` knows the failed runs, `opened` may be older. `bases` are the runs of the recipe's first
    row, by their seeds.
    """
    best, fault = choose_arm(recipe, arms, opened)
    searched = [(arm, seed) for arm in arms for seed in seeds_of(recipe, arms, study)]
    chosen = [] if best is None else [(best, seed) for seed in study.seeds]
    for key in chosen or searched:
        failed = study.failed.get(study.folder(*key))
        if failed:
            fault = failed
            break
    runs = {seed: run for arm, seed in chosen if (run := opened.get(arm, seed)) is not None}
    missing = {study.folder(*key) for key in (*searched, *chosen) if opened.get(*key) is None}
    by_seed: Mapping[int, Mapping[str, float]] = {}
    try:
        if not fault:
            by_seed = {
                seed: measures_of(run, recipe.measures, row.evaluated, bases.get(seed))
                for seed, run in runs.items()
            }
    except FairbloomError as error:
        fault = str(error)
    except Exception as error:  # a bug of ours must not lose hours of other rows
        fault = f"it cannot be measured: {type(error).__name__}: {error}"
    varied = {key for point in recipe.points(row, every_axis=True) for key in point}
    settings = {} if best is None else best.settings
    point = {key: value for key, value in settings.items() if key in varied}
    name = recipe.name_of(row, point)
    parameters = recipe.parameters(row, point)
    return Outcome(
        row,
        name,
        parameters,
        published=recipe.published(row),
        runs=runs,
        by_seed=by_seed,
        unfinished=frozenset(missing - study.failed.keys()),
        fault=fault,
    )


def measures_of(
    run: Run, measures: Sequence[str], evaluated: str, base: Run | None = None
) -> dict[str, float]:
    """Return measures of a run under the models that are evaluated.

    Papers print numbers over all clients. `base` is the run of the recipe's first row, by default
    this one. Raise FairbloomError if a measure is missing.
    """
    values = run.final(model=evaluated)
    if not values:
        if evaluated == "global":
            final_of(run)  # raises
        raise FairbloomError(
            f"{run.folder} has no personal models: leave evaluated out, or take a method that has"
            " some"
        )
    served = ClientScores(
        values,
        run.score,
        run.test_examples(),
        run.by_group(evaluated),
        (base or run).final(),
        run.training,
    )
    found = {measure: find_measure(measure).of(served) for measure in measures}
    for measure, value in found.items():
        if math.isnan(value) and measure.startswith((CLIENT, GAP)):
            raise FairbloomError(f"{measure}: {run.folder} has none under the {evaluated} models")
    return found


def measures_by_round(
    run: Run, measures: Sequence[str], evaluated: str, rounds: Iterable[int]
) -> dict[int, dict[str, float]]:
    """Return measures of a run after these rounds; rounds without any score are left out."""
    found = dict[int, dict[str, float]]()
    for number in rounds:
        with contextlib.suppress(FairbloomError):  # the last round has shown any other fault
            found[number] = measures_of(run.after(number), measures, evaluated)
    return found

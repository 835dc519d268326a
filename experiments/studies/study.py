"""A recipe as it is run: the runs of its rows, at the points of their grids and with each seed, and their folders."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Mark, SettingsError, Value, digest, marked
from fairbloom.server.settings import Settings, check_used, may_differ

from ..recipes.labels import format_value
from ..recipes.recipe import Case, Recipe, owner_of
from ..results.measured import selection
from ..results.run import Run, load
from .pool import RunKey, is_done

QUICK_SHARE, QUICK_ROUNDS = 10, 20
"""What --quick leaves of the rounds: a tenth, and at most so many."""

Point = Mapping[str, Value]
"""The values of the settings that a row's grid tries."""


class Trial(NamedTuple):
    """A run of a row: at a point of its grid, with a seed."""

    case: Case
    point: Point
    seed: int


@dataclass(frozen=True)
class Experiment:
    """A recipe, or some rows of it, as it is run.

    Attributes
    ----------
    cases
        The rows, by variant.
    seeds
        The seeds of each.
    overrides
        The settings that the user has set for all runs.
    quick
        Whether the runs are cut short.
    out
        The folder of the runs.
    """

    cases: Sequence[Case]
    seeds: Sequence[int]
    overrides: Mapping[str, Value]
    quick: bool
    out: Path

    @property
    def recipe(self) -> Recipe:
        """The recipe that the rows are of."""
        return self.cases[0].recipe

    @property
    def whole(self) -> bool:
        """Whether it has all rows of the recipe."""
        return len(self.cases) == len(self.recipe.cases())

    @property
    def comparable(self) -> bool:
        """Whether the runs are as the recipe has them: neither cut short nor with other settings."""
        free = {*may_differ(finished=True), *marked(Mark.PLACE, Mark.ROUNDING)}
        return not self.quick and not self.overrides.keys() - free

    @property
    def count(self) -> int:
        """How many runs there are: those that search the grids, and those at the points that are found."""
        searched = self.runs(trial for case in self.cases for trial in self.searched(case))
        later = sum(len(self.seeds) - len(self._search_seeds) for case in self.cases if len(self._points(case)) > 1)
        return len(searched) + later

    def searched(self, case: Case) -> list[Trial]:
        """Return the runs of a row before its grid is decided; without a grid these are all."""
        points = self._points(case)
        seeds = self.seeds if len(points) == 1 else self._search_seeds
        return [Trial(case, point, seed) for point in points for seed in seeds]

    def chosen(self, case: Case) -> list[Trial]:
        """Return the runs of a row at the best point of its grid, whose mean over clients and seeds is the highest.

        A point with a run that failed, or is not finished, is never it; where all are such points there are no runs.
        """
        points = self._points(case)
        if len(points) == 1:
            return self.searched(case)
        qualities = [self._quality(case, point) for point in points]
        best = max(qualities)
        return [] if best == -math.inf else [Trial(case, points[qualities.index(best)], seed) for seed in self.seeds]

    def config(self, trial: Trial) -> dict[str, Value]:
        """Return the settings of a run, but for seed and folder; the user's go before all others."""
        config = trial.case.config | dict(trial.point)
        owned = {key: value for key, value in self.overrides.items() if trial.case.takes(key)}
        return (quickened(config) if self.quick else config) | owned

    def folder(self, trial: Trial) -> Path:
        """Return the folder of a run, named by its settings: rows that need the same run share it."""
        return self.out / "runs" / f"{folder_name(self.config(trial))}-seed{trial.seed}"

    def settings(self, trial: Trial) -> Settings:
        """Return the settings of a run, known, possible and used."""
        own: dict[str, Value] = {"seed": trial.seed, "out": str(self.folder(trial))}
        return trial.case.settings(self.config(trial) | own)

    def runs(self, trials: Iterable[Trial]) -> dict[RunKey, Settings]:
        """Return the settings of runs by what they are called, seed by seed; one that several rows need is there once.

        So every row has a number early on, and not the first row all of its.
        """
        once: dict[Path, Trial] = {}
        for trial in sorted(trials, key=lambda trial: trial.seed):
            once.setdefault(self.folder(trial), trial)
        return {(_name(trial), trial.seed): self.settings(trial) for trial in once.values()}

    def finished(self, trial: Trial) -> Run | None:
        """Return a run that is finished, else None."""
        settings = self.settings(trial)
        return load(settings.out) if is_done(settings) else None

    def _points(self, case: Case) -> list[dict[str, Value]]:
        """Return what the grid tries; what the user has set is not varied."""
        tried = [{k: v for k, v in point.items() if k not in self.overrides} for point in case.points()]
        return [point for i, point in enumerate(tried) if point not in tried[:i]]

    @property
    def _search_seeds(self) -> Sequence[int]:
        return self.seeds[: self.recipe.grid_seeds or len(self.seeds)]

    def _quality(self, case: Case, point: Point) -> float:
        """Return what a point is chosen by, minus infinity where one of its runs is not finished."""
        runs = [self.finished(Trial(case, point, seed)) for seed in self._search_seeds]
        return sum(-math.inf if run is None else selection(run, case.row.evaluated) for run in runs)


def chosen_rows(recipe: Recipe, words: Sequence[str]) -> list[Case]:
    """Return the cases of the rows whose name has one of the words, all without words; the baseline is always there.

    Raises
    ------
    FairbloomError
        When no row is one of them.
    """
    cases = recipe.cases()
    wanted = [
        case for case in cases if not words or any(word.casefold() in case.full_name.casefold() for word in words)
    ]
    if not wanted:
        there = ", ".join(dict.fromkeys(case.name for case in cases))
        raise FairbloomError(f"--rows {' '.join(words)}: recipe {recipe.name} has no such row: there are {there}")
    variants = {case.variant for case in wanted}
    return [
        case for case in cases if case in wanted or (recipe.baseline == case.row.label and case.variant in variants)
    ]


def check_overrides(overrides: Mapping[str, Value], cases: Sequence[Case]) -> None:
    """Raise SettingsError when a setting cannot be set for all runs, or no run has a use for it."""
    options = {"seed": "--seeds", "out": "--out", "method": "--rows"}
    for key, value in overrides.items():
        if key in options:
            raise SettingsError(f"{key} = {value!r}: a recipe sets {key} run by run: use {options[key]}")
    methods = [case.method for case in cases]
    for task in {str({**case.config, **overrides}.get("task", "digits")) for case in cases}:
        check_used(overrides, methods, task)


def quickened(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings with a tenth of the rounds, at most 20, and no fewer evaluations than one a round has."""
    full = config.get("num-rounds", Settings.model_fields["num_rounds"].default)
    rounds = min(QUICK_ROUNDS, math.ceil(int(full) / QUICK_SHARE))
    every = min(1, int(config.get("evaluate-every", 1)))
    return {**config, "num-rounds": rounds, "evaluate-every": every}


def folder_name(config: Mapping[str, Value]) -> str:
    """Return the beginning of the name of a run's folder: its method with parameters, and a digest of its settings."""
    told = {key: value for key, value in config.items() if key not in may_differ(finished=True)}
    method = str(config["method"])
    own = [
        f"{key.rpartition('.')[2]}={format_value(v)}"
        for key, v in told.items()
        if key.startswith(f"{owner_of(method)}.")
    ]
    plain = re.sub(r"[^\w.=+-]", "-", "-".join([method, *own]), flags=re.ASCII)[:100]
    return f"{plain}-{digest(told)}"


def _name(trial: Trial) -> str:
    """Return what messages call a run: the name of its row, and the point of the grid."""
    at = ", ".join(f"{key} = {format_value(value)}" for key, value in trial.point.items())
    return f"{trial.case.full_name} at {at}" if at else trial.case.full_name

"""A study: rows that are each run with several seeds, at one point or at the best point of a grid."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings

from ..recipes.recipe import Point
from ..results.measured import selection
from ..results.run import Run, load
from .pool import RunKey, is_done


@dataclass(frozen=True)
class Candidate:
    """A row of a study at one point of its grid.

    Attributes
    ----------
    name
        What messages call it; no two of a study have the same.
    config
        The settings of its runs, but for seed and folder.
    folder
        The beginning of the names of its run folders; candidates that need the same runs share it.
    point
        The values of the settings that the grid tries; nothing where there is no grid.
    """

    name: str
    config: Mapping[str, Value]
    folder: str
    point: Point = field(default_factory=dict)


class PlannedRun(NamedTuple):
    """A run of a study: a candidate with a seed."""

    candidate: Candidate
    seed: int


@dataclass(frozen=True)
class StudyRow:
    """A row of a study: its candidates, of which the best is shown, and the model by which the best is chosen.

    A row has one candidate for each point of its grid, and a single one without a grid.
    """

    candidates: Sequence[Candidate]
    evaluated: str = "global"


@dataclass(frozen=True)
class Study:
    """Rows that are each run with several seeds.

    Attributes
    ----------
    rows
        The rows.
    seeds
        The seeds of each row.
    out
        The folder of the study; the runs lie in its folder runs/.
    grid_seeds
        With how many seeds, the first ones, the grids are searched; 0 for all.
    """

    rows: Sequence[StudyRow]
    seeds: Sequence[int]
    out: Path
    grid_seeds: int = 0

    @property
    def count(self) -> int:
        """How many runs there are: those that search the grids, and those at the points that are found."""
        later = sum(len(self.seeds) - len(self._search_seeds) for row in self.rows if len(row.candidates) > 1)
        return len(self.first_runs()) + later

    def search(self, row: StudyRow) -> list[PlannedRun]:
        """Return the runs of a row before its grid is decided; without a grid these are all."""
        seeds = self.seeds if len(row.candidates) == 1 else self._search_seeds
        return [PlannedRun(candidate, seed) for candidate in row.candidates for seed in seeds]

    def choose(self, row: StudyRow) -> list[PlannedRun]:
        """Return the runs of a row's best candidate, whose mean over clients and seeds is the highest.

        A candidate with a run that failed, or is not finished, is never it; where all are such, there are no runs.
        """
        if len(row.candidates) == 1:
            return self.search(row)
        qualities = [self._quality(candidate, row.evaluated) for candidate in row.candidates]
        best = max(qualities)
        chosen = row.candidates[qualities.index(best)]
        return [] if best == -math.inf else [PlannedRun(chosen, seed) for seed in self.seeds]

    def folder(self, planned: PlannedRun) -> Path:
        """Return the folder of a run."""
        return self.out / "runs" / f"{planned.candidate.folder}-seed{planned.seed}"

    def settings(self, planned: PlannedRun) -> Settings:
        """Return the settings of a run."""
        return Settings.of({**planned.candidate.config, "seed": planned.seed, "out": str(self.folder(planned))})

    def first_runs(self) -> dict[RunKey, Settings]:
        """Return the settings of all runs before the grids are decided; without grids these are all."""
        return self._settings(planned for row in self.rows for planned in self.search(row))

    def chosen_runs(self) -> dict[RunKey, Settings]:
        """Return the settings of the runs of each row's best candidate."""
        return self._settings(planned for row in self.rows for planned in self.choose(row))

    def finished(self, planned: PlannedRun) -> Run | None:
        """Return a run that is finished, else None."""
        settings = self.settings(planned)
        return load(settings.out) if is_done(settings) else None

    def _settings(self, runs: Iterable[PlannedRun]) -> dict[RunKey, Settings]:
        """Return the settings of runs by what they are called, seed by seed; one that several rows need is there once.

        So every row has a number early on, and not the first row all of its.
        """
        once: dict[Path, PlannedRun] = {}
        for planned in sorted(runs, key=lambda planned: planned.seed):
            once.setdefault(self.folder(planned), planned)
        return {(planned.candidate.name, planned.seed): self.settings(planned) for planned in once.values()}

    @property
    def _search_seeds(self) -> Sequence[int]:
        return self.seeds[: self.grid_seeds or len(self.seeds)]

    def _quality(self, candidate: Candidate, evaluated: str) -> float:
        """Return what a candidate is chosen by, minus infinity where one of its runs is not finished."""
        runs = [self.finished(PlannedRun(candidate, seed)) for seed in self._search_seeds]
        return sum(-math.inf if run is None else selection(run, evaluated) for run in runs)

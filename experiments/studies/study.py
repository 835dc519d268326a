"""A study: rows that are each run with several seeds, at one point or at the best point of a grid."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings, digest_changed, may_differ

from ..recipes.labels import format_value, short_key
from ..recipes.recipe import Point
from ..recipes.variants import owner_of
from ..results.run import Run, load
from .objective import MEAN, Objective, Rating, choose, judge_runs
from .pool import RunKey, is_done


@dataclass(frozen=True)
class Candidate:
    """A row of a study at one point of its grid."""

    name: str  # unique in the study
    config: Mapping[str, Value]  # without seed and folder
    folder: str  # the beginning of the names of its run folders
    point: Point = field(default_factory=dict)  # the values that the grid tries
    evaluated: str = "global"  # the model that is judged, or "personal"


class PlannedRun(NamedTuple):
    """A run of a study: a candidate with a seed."""

    candidate: Candidate
    seed: int


StudyRow = Sequence[Candidate]
"""A row of a study: a candidate for each point of its grid, of which the best is shown."""


@dataclass(frozen=True)
class Study:
    """Rows that are each run with several seeds, in the folder runs/ of `out`."""

    rows: Sequence[StudyRow]
    seeds: Sequence[int]
    out: Path
    grid_seeds: int = 0  # with how many seeds, the first ones, grids are searched; 0: all
    criterion: Objective = MEAN  # by which the best candidate of a row is chosen

    def with_settings(self, settings: Mapping[str, Value]) -> Self:
        """Return the study with settings that all of its runs have as well."""
        rows = [[replace(each, config={**each.config, **settings}) for each in row] for row in self.rows]
        return replace(self, rows=rows)

    @property
    def count(self) -> int:
        """How many runs there are: those that search the grids, and those at the points that are found."""
        later = sum(len(self.seeds) - len(self.search_seeds) for row in self.rows if len(row) > 1)
        return len(self.first_runs()) + later

    def search(self, row: StudyRow) -> list[PlannedRun]:
        """Return the runs of a row before its grid is decided; without a grid these are all."""
        seeds = self.seeds if len(row) == 1 else self.search_seeds
        return [PlannedRun(candidate, seed) for candidate in row for seed in seeds]

    def choose(self, row: StudyRow) -> list[PlannedRun]:
        """Return the runs of a row's best candidate by the criterion, with all seeds.

        A candidate with a run that failed, or is not finished, is never it; where all are such, there are no runs.
        """
        if len(row) == 1:
            return self.search(row)
        ratings = self.judge(row)
        best = choose(dict(enumerate(ratings)))
        if best is None:
            return []
        return [PlannedRun(row[best], seed) for seed in self.seeds]

    def fault_of(self, row: StudyRow) -> str:
        """Return why no candidate of a row can be chosen, as far as their scores say; "" where they do not."""
        faults = [
            f"{each.name}: {rating.fault}" for each, rating in zip(row, self.judge(row), strict=True) if rating.fault
        ]
        return "" if self.choose(row) or not faults else faults[0]

    def judge(self, row: StudyRow) -> list[Rating]:
        """Return what each candidate of a row is worth by the criterion, over the seeds of the search."""
        runs = [[self.finished(PlannedRun(each, seed)) for seed in self.search_seeds] for each in row]
        return judge_runs(self.criterion, [each.evaluated for each in row], runs)

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
        """Return the settings of runs, each once, seed by seed, so that every row has a number early on."""
        once: dict[Path, PlannedRun] = {}
        for planned in sorted(runs, key=lambda planned: planned.seed):
            once.setdefault(self.folder(planned), planned)
        return {(planned.candidate.name, planned.seed): self.settings(planned) for planned in once.values()}

    @property
    def search_seeds(self) -> Sequence[int]:
        """The seeds with which grids are searched."""
        return self.seeds[: self.grid_seeds or len(self.seeds)]


def folder_name(config: Mapping[str, Value], free: Collection[str] = ()) -> str:
    """Return the beginning of the name of a run's folder: its method with parameters, and a digest of its settings.

    Settings that leave the numbers unchanged have no part in it, nor have those that are `free` to change.
    """
    left_out = {*may_differ(finished=True), *free}
    settings = {key: value for key, value in config.items() if key not in left_out}
    method = str(config["method"])
    prefix = f"{owner_of(method)}."
    parameters = [f"{short_key(key)}={format_value(v)}" for key, v in settings.items() if key.startswith(prefix)]
    plain = re.sub(r"[^\w.=+-]", "-", "-".join([method, *parameters]), flags=re.ASCII)[:100]
    return f"{plain}-{digest_changed(config, left_out)}"

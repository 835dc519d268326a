"""What a sweep has found: the points of its grid on validation examples, and the chosen one on test examples."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.protocol.settings import Value

from ..recipes.labels import format_value, label_of, short_key
from .comparison import Comparison, Plan
from .plans import SWEEP, PlanFile
from .presentation import Shown


@dataclass(frozen=True)
class Planned:
    """A point of a sweep as sweep.json has it."""

    row: str  # the name of its method: FedFV
    settings: Mapping[str, Value]  # method, what the sweep tries, and what this method alone has
    point: Mapping[str, Value]  # those that the sweep tries
    folder: str  # the beginning of the names of its run folders
    rounds: int
    evaluated: str = "global"  # the model that is judged, or "personal"
    fault: str = ""

    @property
    def name(self) -> str:
        """What tables call it: `FedFV (alpha=0.1, learning-rate=0.05)`."""
        return label_of(self.row, {key: value for key, value in self.settings.items() if key != "method"})

    def runs(self, seeds: Sequence[int]) -> list[str]:
        """Return its run folders in that of the sweep, one a seed."""
        return [f"runs/{self.folder}-seed{seed}" for seed in seeds]


@dataclass(frozen=True)
class SweepPlan(PlanFile):
    """What a sweep runs, as sweep.json has it."""

    file, kind, command = SWEEP, "sweep", "fairbloom sweep"

    title: str
    criterion: str
    seeds: Sequence[int]  # of the chosen point and the baseline
    searched: Sequence[int]  # of the other points: the first ones of `seeds`
    points: Sequence[Planned]  # including those of the baseline
    baseline: str = ""  # the row that the chosen point is compared with
    notes: Sequence[str] = ()  # what the sweep has set by itself
    ended: bool = False  # all runs were tried, so no point is missing


@dataclass(frozen=True)
class SweepPoint:
    """A point of a sweep, and what it is worth on validation examples.

    Attributes
    ----------
    planned
        What was run.
    values
        The criterion with each seed, in the unit of the score; empty where runs are missing or failed.
    unfinished
        How many of its runs are missing.
    fault
        Why it cannot be chosen; "" where it can, or where runs are missing.
    misses
        By how much it misses constraints; 0 where it keeps them.
    """

    planned: Planned
    values: tuple[float, ...] = ()
    unfinished: int = 0
    fault: str = ""
    misses: float = 0.0

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.planned.name

    @property
    def mean(self) -> float:
        """The mean of the criterion over the seeds, NaN without one."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def error(self) -> float:
        """The standard error of that mean, NaN with fewer than two seeds."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else math.nan

    @property
    def state(self) -> str:
        """What became of it: "", "failed", "unfinished", or by how much it misses constraints."""
        if self.fault:
            return "failed"
        if self.unfinished:
            return "unfinished"
        return f"misses by {self.misses:.3g}" if self.misses else ""


@dataclass(frozen=True)
class Sweep(Shown):
    """What a sweep has found.

    Attributes
    ----------
    plan
        What was run.
    measured
        What the criterion is called: `worst client`.
    points
        The points that are chosen among.
    chosen
        Which of these is best by the criterion; None while runs are missing, or where all have failed.
    bases
        The points of the baseline.
    base
        Which of those is the baseline's best; None as above, or where there is no baseline.
    folder
        Where tables, figure and runs lie.
    score
        The score that the criterion is of.
    test
        The chosen point beside the baseline on test examples, which had no part in the choice; None where none is
        chosen, or runs of it are missing.
    notes
        What limits the choice, in sentences.
    """

    plan: SweepPlan
    measured: str
    points: Sequence[SweepPoint]
    chosen: int | None
    bases: Sequence[SweepPoint] = ()
    base: int | None = None
    folder: Path = field(default_factory=Path)
    score: Score = ACCURACY
    test: Comparison | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> SweepPoint | None:
        """The chosen point."""
        return None if self.chosen is None else self.points[self.chosen]

    @property
    def baseline(self) -> SweepPoint | None:
        """The baseline's best point."""
        return None if self.base is None else self.bases[self.base]

    @property
    def test_plan(self) -> Plan:
        """The runs of the chosen point and of the baseline's best, as a comparison has them."""
        shown = [point.planned for point in (self.best, self.baseline) if point is not None]
        return Plan({each.name: each.runs(self.plan.seeds) for each in shown}, self.plan.seeds, shown[-1].name)

    @property
    def unfinished(self) -> int:
        """How many runs are missing."""
        return sum(point.unfinished for point in (*self.points, *self.bases))

    def sentences(self) -> list[str]:
        """Return in words what was chosen, and how sure that is."""
        return [*self._choice(), *self._failures(), *self.notes]

    def _choice(self) -> list[str]:
        plan, seeds = self.plan, len(self.plan.searched)
        if self.best is None:
            why = "none keeps the constraints" if any(point.misses for point in self.points) else "all of them failed"
            return [f"No point can be chosen: {why}."] if self.plan.ended else [self._missing()]
        by = f"by {self.measured} on validation examples"
        found = [f"Chosen {by}: {self.best.name}."]
        if not self.plan.ended or self.unfinished:
            found.append(f"{self._missing()} The choice may change.")
        if self.baseline is not None:
            if self.score.better(self.baseline.mean, self.best.mean) > 0.0:
                found.append(f"{by[:1].upper()}{by[1:]}, the baseline {self.baseline.name} is better still.")
            elif len(self.bases) > 1:
                found.append(f"The baseline, {self.baseline.name}, was chosen among its own points in the same way.")
        if plan.searched != plan.seeds and self.test is not None:
            found.append(f"Points were searched with the first {seeds} seeds, and tested with all {len(plan.seeds)}.")
        return found

    def _missing(self) -> str:
        runs = f"{self.unfinished} runs of its points are missing" if self.unfinished > 1 else "a run is missing"
        what = runs if self.unfinished else "points are missing"
        return f"The sweep is not finished, {what}: the same fairbloom sweep goes on."

    def _failures(self) -> list[str]:
        return [f"{point.name} failed: {point.fault}" for point in (*self.points, *self.bases) if point.fault]

    @property
    def as_json(self) -> dict[str, Any]:
        """What --json prints."""
        return {
            "title": self.plan.title,
            "criterion": self.plan.criterion,
            "score": asdict(self.score),
            "seeds": list(self.plan.seeds),
            "searched_seeds": list(self.plan.searched),
            "points": [self._point(point) for point in self.points],
            "chosen": self._chosen_json(self.best),
            "baseline": self._chosen_json(self.baseline),
            "baseline_points": [self._point(point) for point in self.bases],
            "test": self._test_json(),
            "ended": self.plan.ended,
            "unfinished": self.unfinished,
            "sentences": self.sentences(),
            "folder": str(self.folder),
        }

    def _test_json(self) -> dict[str, Any] | None:
        if self.test is None:
            return None
        return {"methods": self.test.rows(), "clients": self.test.client_rows()}

    def _chosen_json(self, point: SweepPoint | None) -> dict[str, Any] | None:
        if point is None:
            return None
        return {"name": point.name, "settings": dict(point.planned.settings)}

    def _point(self, point: SweepPoint) -> dict[str, Any]:
        return {
            "name": point.name,
            "method": point.planned.row,
            "parameters": {short_key(key): value for key, value in point.planned.point.items()},
            "settings": dict(point.planned.settings),
            "values": list(point.values),
            "mean": _or_none(point.mean),
            "error": _or_none(point.error),
            "rounds": point.planned.rounds,
            "fault": point.fault,
            "misses": point.misses,
            "unfinished": point.unfinished,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of sweep.csv: one a point and seed, "" for the criterion where it is not known."""
        keys = list(dict.fromkeys(key for point in (*self.points, *self.bases) for key in point.planned.point))
        return [
            {"method": point.planned.row, "role": self._role(point)}
            | {key: format_value(point.planned.point[key]) if key in point.planned.point else "" for key in keys}
            | {"rounds": point.planned.rounds, "state": point.state, "seed": seed}
            | {"score": self.score.title, "criterion": self.plan.criterion, "validation": value}
            for point in (*self.points, *self.bases)
            for seed, value in zip(self.plan.searched, point.values or [""] * len(self.plan.searched), strict=True)
        ]

    def _role(self, point: SweepPoint) -> str:
        return "chosen" if point is self.best else "baseline" if point is self.baseline else ""

    def __repr__(self) -> str:
        """Return the sweep in a line."""
        chosen = f"chosen {self.best.name}" if self.best else "nothing chosen"
        return f"Sweep({str(self.folder)!r}: {len(self.points)} points, {len(self.plan.seeds)} seeds, {chosen})"


def _or_none(number: float | None) -> float | None:
    """Return a number, None for one that JSON does not have."""
    return None if number is None or not math.isfinite(number) else number

"""What a tracker is given: the run, and the numbers of each round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fairbloom.protocol.scores import Score

from ..run_folder.files import CONFIG, TRACKING
from ..run_folder.recorded import RecordedRound

FEW_CLIENTS = 30
"""With at most this many clients, each has a curve of its score and of its coefficient."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is given when a run begins or goes on; rounds up to `saved` are recorded already."""

    folder: Path
    settings: Mapping[str, Any]
    score: Score
    saved: int = 0

    @property
    def name(self) -> str:
        """What the run is called among others: its folder's name."""
        return self.folder.name

    @property
    def experiment(self) -> str:
        """What runs that are shown together have in common: the nearest folder above that is not called runs."""
        return next((place.name for place in self.folder.parents if place.name != "runs"), "") or "fairbloom"

    def read_id(self, track: str) -> str | None:
        """Return the id under which the tracker has this run; None of a new run, and once it was taken back."""
        recorded = TRACKING.read(self.folder).get(track, {})
        return recorded.get("id") if recorded.get("taken-back") == self._taken_back else None

    def write_id(self, track: str, run_id: str) -> None:
        """Write the id under which the tracker has this run, so that it is continued there."""
        about = {"id": run_id, "taken-back": self._taken_back}
        TRACKING.write(self.folder, {**TRACKING.read(self.folder), track: about})

    @property
    def _taken_back(self) -> int:
        return len(CONFIG.read(self.folder).taken_back)


class Tracker(Protocol):
    """Shows one run; what a method of it raises ends the tracking and not the run."""

    def log(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a round."""

    def end(self, files: Sequence[Path], *, finished: bool) -> None:
        """Attach these files, and end; a run that is not finished may be continued later."""


def metrics_of(recorded: RecordedRound, score: Score) -> dict[str, float]:
    """Return the numbers of a round that trackers show, as `GROUP/NAME`.

    Groups: the score under each kind of model, with its measures of fairness; `round` for other columns of rounds.csv;
    `train`, `evaluate` and `server` for a user's app; and, of few clients, each one's score and coefficient.
    """
    found = {_grouped(column, score): value for column, value in recorded.row.items() if column != "round"}
    found |= {"round/refused": len(recorded.refused), "round/missing": len(recorded.missing)}
    found |= recorded.app_metrics
    if len(recorded.scores) <= FEW_CLIENTS:
        found |= {f"{score.column()}_by_client/{name}": value for name, value in recorded.scores.items()}
    if len(recorded.coefficients) <= FEW_CLIENTS:
        found |= {f"coefficient/{name}": value for name, value in recorded.coefficients.items()}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _grouped(column: str, score: Score) -> str:
    for model in ("global", "personal"):
        prefix = f"{score.column(model)}_"
        if column.startswith(prefix):
            return f"{score.column(model)}/{column.removeprefix(prefix)}"
    return f"round/{column}"

"""Early stopping: a run ends after several rounds without a better validation score."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fairbloom.protocol.parameters import SettingsError
from fairbloom.rounds.round import Round

from .csv_rows import OVER, Validation


@dataclass
class EarlyStopping:
    """Watches the score on validation examples: its mean over the clients, or of the worst 10 %.

    `patience` rounds without a better score end the run; `last` is the last round with a known
    score.
    """

    patience: int
    validation: Validation
    best: float | None = None
    best_round: int = 0
    last: int = 0

    @classmethod
    def of(cls, patience: int, validation: Validation) -> Self | None:
        """Return an object that watches a run, or None if `patience` is 0."""
        return cls(patience, validation) if patience else None

    def observe(self, finished: Round) -> None:
        """Look at a round; raise SettingsError after `patience` rounds without any score."""
        score = self.validation.score
        if (value := self.validation.of_round(finished)) is not None:
            self.last = finished.number
            if self.best is None or score.better(value, self.best) > 0.0:
                self.best = value
                self.best_round = finished.number
        elif self.best is None and finished.evaluations and finished.number >= self.patience:
            raise SettingsError(
                f"early-stopping = {self.patience} uses the mean validation {score.name}, and"
                f" up to round {finished.number} no client has reported any: give the clients"
                " validation examples (a task does by a larger validation-share), or set"
                " early-stopping = 0"
            )

    @property
    def reason(self) -> str:
        """Why the run must end, "" as long as it continues."""
        if self.best is None or self.last - self.best_round < self.patience:
            return ""
        score = self.validation.score
        since = self.last - self.best_round
        return (
            f"the mean validation {score.name}{OVER[self.validation.measure]} was best in round"
            f" {self.best_round}, {score.written(self.best)}, and not better in the {since} rounds"
            f" since (early-stopping = {self.patience})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the best score so far, its round, and the last round with a known score."""
        return {"best": self.best, "round": self.best_round, "last": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self.best = state["best"]
        self.best_round = state["round"]
        self.last = state["last"]

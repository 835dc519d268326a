"""Early stopping: a run ends after several rounds without a better validation score."""

from dataclasses import dataclass, replace
from typing import Any, Self

from fairbloom.protocol.parameters import SettingsError
from fairbloom.rounds.round import Round

from .csv_rows import OVER, Validation


@dataclass(frozen=True)
class EarlyStopping:
    """What a run knows of its score on validation examples, to end early.

    The score is a mean over the clients, or over the worst 10 %. `patience` rounds without a better
    one end the run; `last` is the last round with a known score.
    """

    patience: int
    validation: Validation
    best: float | None = None
    best_round: int = 0
    last: int = 0

    def after(self, finished: Round) -> Self:
        """Return what is known after a round.

        Raise SettingsError after `patience` rounds without any score.
        """
        score = self.validation.score
        if (value := self.validation.of_round(finished)) is not None:
            if self.best is None or score.better(value, self.best) > 0.0:
                return replace(self, best=value, best_round=finished.number, last=finished.number)
            return replace(self, last=finished.number)
        if self.best is None and finished.evaluations and finished.number >= self.patience:
            raise SettingsError(
                f"early-stopping = {self.patience} uses the mean validation {score.name}, and"
                f" up to round {finished.number} no client has reported any: give the clients"
                " validation examples (a task does by a larger validation-share), or set"
                " early-stopping = 0"
            )
        return self

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

    def encode(self) -> dict[str, Any]:
        """Return what changes in a run; `replace` takes it back."""
        return {"best": self.best, "best_round": self.best_round, "last": self.last}

"""Early stopping: a run ends after several rounds without a better validation score."""

from dataclasses import dataclass, replace
from typing import Self

from fairbloom.protocol.parameters import SettingsError
from fairbloom.rounds.round import Round

from .csv_rows import OVER, Validation


@dataclass(frozen=True)
class ScoreSoFar:
    """The best score of a run's rounds so far, if any is known, and its round.

    `last` is the last round with a known score.
    """

    best: float | None = None
    best_round: int = 0
    last: int = 0


@dataclass(frozen=True)
class EarlyStopping:
    """The rule that ends a run early, and what is known of the score that it goes by.

    The score is a mean over the clients, or over the worst 10 %, on validation examples. `patience`
    rounds without a better one end the run.
    """

    patience: int
    validation: Validation
    known: ScoreSoFar = ScoreSoFar()

    def after(self, finished: Round) -> Self:
        """Return what is known after a round.

        Raise SettingsError after `patience` rounds without any score.
        """
        score = self.validation.score
        number = finished.number
        value = self.validation.of_round(finished)
        best = self.known.best
        if value is not None:
            if best is None or score.better(value, best) > 0.0:
                return replace(self, known=ScoreSoFar(value, number, number))
            return replace(self, known=replace(self.known, last=number))
        if best is None and finished.evaluations and number >= self.patience:
            raise SettingsError(
                f"early-stopping = {self.patience} uses the mean validation {score.name}, and"
                f" up to round {number} no client has reported any: give the clients"
                " validation examples (a task does by a larger validation-share), or set"
                " early-stopping = 0"
            )
        return self

    @property
    def reason(self) -> str:
        """Why the run must end, "" as long as it continues."""
        best = self.known.best
        since = self.known.last - self.known.best_round
        if best is None or since < self.patience:
            return ""
        score = self.validation.score
        return (
            f"the mean validation {score.name}{OVER[self.validation.measure]} was best in round"
            f" {self.known.best_round}, {score.written(best)}, and not better in the {since} rounds"
            f" since (early-stopping = {self.patience})"
        )

"""Early stopping: a run ends after several rounds without a better validation score."""

from dataclasses import dataclass

from fairbloom.protocol.parameters import SettingsError
from fairbloom.rounds.round import Round
from fairbloom.rounds.run_state import ScoreSoFar

from .csv_rows import OVER, Validation


class NoStopping:
    """The rule of a run that ends after its last round only, whatever its scores are."""

    def after(self, known: ScoreSoFar, finished: Round) -> ScoreSoFar:
        """Return what the rule knows after a round."""
        return ScoreSoFar()

    def reason(self, known: ScoreSoFar) -> str:
        """Return why the run must end, "" as long as it continues."""
        return ""


NEVER = NoStopping()


@dataclass(frozen=True)
class EarlyStopping(NoStopping):
    """The rule that ends a run after `patience` rounds without a better score.

    The score is a mean over the clients, or over the worst 10 %, on validation examples.
    """

    patience: int
    validation: Validation

    def after(self, known: ScoreSoFar, finished: Round) -> ScoreSoFar:
        """Return what the rule knows after a round.

        Raise SettingsError after `patience` rounds without any score.
        """
        score = self.validation.score
        number = finished.number
        after = known.after(number, self.validation.of_round(finished), score.better)
        if after.best is None and finished.evaluations and number >= self.patience:
            raise SettingsError(
                f"early-stopping = {self.patience} uses the mean validation {score.name}, and"
                f" up to round {number} no client has reported any: give the clients"
                " validation examples (a task does by a larger validation-share), or set"
                " early-stopping = 0"
            )
        return after

    def reason(self, known: ScoreSoFar) -> str:
        """Return why the run must end, "" as long as it continues."""
        since = known.last - known.best_round
        if known.best is None or since < self.patience:
            return ""
        score = self.validation.score
        best = score.written(known.best)
        return (
            f"the mean validation {score.name}{OVER[self.validation.measure]} was best in round"
            f" {known.best_round}, {best}, and not better in the {since} rounds since"
            f" (early-stopping = {self.patience})"
        )

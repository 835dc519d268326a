"""A recorded round, with which progress bars and a caller's function are called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairbloom.protocol.scores import Score
from fairbloom.rounds.round import Round

from .csv_rows import ENDINGS, MEASURES, Row, scores_by_client


@dataclass(frozen=True)
class RecordedRound:
    """A round of a run, as `on_round` of `fairbloom.run` gets it.

    Attributes
    ----------
    number
        The number of the round, from 1.
    row
        Its row of rounds.csv, by column; an empty column is missing or None.
    measures
        How the score is spread over the clients under the model that the method serves them with,
        the global one or their personal ones: mean, std, worst, worst_10, best_10, gap and the
        other measures of `fairbloom.server.fairness.summarize`. Empty in a round that was not
        evaluated.
    scores
        The score of each client under that model, in the unit of the tables (accuracy in percent),
        by client name. Empty in a round that was not evaluated.
    coefficients
        The coefficient of each update that was used, by client name; empty in a skipped round.
    refused
        Why a reply was not used, by client name.
    missing
        The clients that did not answer in time.
    """

    number: int
    row: Row
    measures: Mapping[str, float]
    scores: Mapping[str, float]
    coefficients: Mapping[str, float]
    refused: Mapping[str, str]
    missing: tuple[str, ...]

    @classmethod
    def of(cls, finished: Round, row: Row, score: Score, model: str = "global") -> "RecordedRound":
        """Return a finished round with its row of rounds.csv.

        `model` is the kind of model that the method serves clients with.
        """
        return cls(
            number=finished.number,
            row=row,
            measures={
                measure: value
                for measure in MEASURES
                if isinstance(value := row.get(f"{score.column(model)}_{measure}"), float)
            },
            scores=scores_by_client(finished, score, score.name + ENDINGS[model]),
            coefficients=dict(finished.coefficients),
            refused=dict(finished.refused),
            missing=finished.missing,
        )


# Called with each round once it is recorded. An exception ends the run, which can be continued
# after that round; StopRun finishes it.
OnRound = Callable[[RecordedRound], None]


def ignore(recorded: RecordedRound) -> None:
    """Do nothing with a recorded round."""

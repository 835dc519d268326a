"""The rows that a round adds to rounds.csv and clients.csv, and their columns."""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from fairbloom.protocol import names
from fairbloom.protocol.scores import ACCURACY, LOSS_SCORE, Score, accuracy_first
from fairbloom.rounds.method import Method
from fairbloom.rounds.participation import COLUMNS as PARTICIPATION, Participations
from fairbloom.rounds.round import Round
from fairbloom.text import text_if

from ..fairness import percent_improved, summarize

# Separates the refused replies of a round. `format_round` replaces it in reasons, which a client
# may have written.
SEPARATOR = " | "

# The name at the beginning of a refused reply, in quotation marks if it has spaces.
REFUSED = re.compile(
    rf"""(?P<name>(?:'[^']*'|"'")+|[^\s'"]\S*?): (?P<reason>.*?)(?:{re.escape(SEPARATOR)}|$)""",
    re.DOTALL,
)

# The columns of rounds.csv that name clients without a used reply.
ABSENT = ("refused", "missing", "offline", "owing", "revoked", "excluded")

# The columns of rounds.csv that only some runs need: of clients in other processes, with privacy
# accounts, and of devices with tables that may change.
OPTIONAL = ("owing", "revoked", "excluded", "other_rows")

# The columns of the tables that hold text, even if it looks like a number.
WORDS = (
    "client",
    *ABSENT,
    "other_rows",
    "lost_states",
    "model",
    "split",
    "grouping",
    "group",
    "phase",
    "metric",
)

# Column of clients.csv for tasks with two classes: the share of a client's test examples that are
# of the larger class, in percent.
SHARE_OF_LARGER_CLASS = "test_share_of_larger_class"

# Column of clients.csv: the loss of the round's model on a client's training examples.
TRAIN_LOSS_OF_GLOBAL_MODEL = "train_loss_of_global_model"

# Column of rounds.csv: the percentage of the participants that `percent_improved` counts.
IMPROVED = "percent_of_participants_improved"

# Column of clients.csv for clients that keep personal models, or parameters: the round in which
# a client last trained them, 0 if it has none.
PERSONAL_ROUND = "personal_model_of_round"

LARGER_CLASS = Score(names.LARGER_CLASS, percent=True)

# A share with the noise of a privacy account, or the deviation of that noise.
SHARE = Score(names.ACCURACY_DEVIATION, percent=True, noisy=True)

# The measures of fairness that rounds.csv has of the score.
MEASURES = tuple(summarize({"anyone": 1.0}))

# Endings of a metric's name on the wire, by its examples and its model.
ENDINGS = {
    "test": "",
    "validation": f"-{names.VALIDATION}",
    "global": "",
    "personal": f"-{names.PERSONAL}",
}

# The measures by which a best model can be chosen, as what follows "the mean score" in a sentence.
OVER = {"mean": "", "worst_10": " of the worst 10 % of clients"}

Report = Mapping[str, float]

# The report of a client that did not train in a round.
NOTHING: Report = MappingProxyType({})

Row = Mapping[str, object]


@dataclass(frozen=True)
class Validation:
    """The score on validation examples, by which a best model is chosen and a run stops early.

    `metric` is its name on the wire, and `measure` one of `summarize`. Without validation examples,
    the `split` is "test".
    """

    score: Score
    metric: str
    measure: str = "mean"
    split: str = "validation"

    @classmethod
    def of(cls, score: Score, model: str = "global", measure: str = "mean") -> Self:
        """Return the validation score of a task's score, for the global or personal models."""
        return cls(score, score.name + ENDINGS["validation"] + ENDINGS[model], measure)

    @property
    def column(self) -> str:
        """The column of rounds.csv with the measure over the clients."""
        return f"{self.score.column(split=self.split)}_{self.measure}"

    def of_round(self, finished: Round) -> float | None:
        """Return the measure over the clients, None if no client has reported the score."""
        values = scores_by_client(finished, self.score, self.metric)
        if not values:
            return None
        return summarize(values, lower_is_better=not self.score.higher_is_better)[self.measure]


@dataclass(frozen=True)
class ClientRows:
    """The table clients.csv: its columns depend on the metrics and examples of the run.

    `loss` is the name of the test loss.
    """

    scores: Sequence[Score] = (ACCURACY,)
    validated: bool = False
    personal: bool = False
    disparity: bool = False
    two_classes: bool = False
    kept: bool = False
    accounts: bool = False
    simulated: bool = False
    loss: str = names.LOSS

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        columns = ["round", "client", "participated", "coefficient", "test_examples"]
        columns += [name for name, _ in self._metrics((), ())]
        return (*columns, *PARTICIPATION)

    def rows(self, finished: Round, participations: Participations) -> list[tuple[object, ...]]:
        """Return a row for each client that evaluated the round's model."""
        clients = sorted(finished.evaluations)
        measured = [finished.evaluations[name] for name in clients]
        trained = [finished.train_metrics.get(name, NOTHING) for name in clients]
        columns: list[Sequence[object]] = [
            [finished.number] * len(clients),
            clients,
            [int(name in finished.coefficients) for name in clients],
            [finished.coefficients.get(name) for name in clients],
            [
                int(report[names.NUM_EXAMPLES]) if names.NUM_EXAMPLES in report else None
                for report in measured
            ],
        ]
        columns += [cells for _, cells in self._metrics(measured, trained)]
        columns += participations.cells(clients)
        return list(zip(*columns, strict=True))

    def _metrics(
        self, measured: Sequence[Report], trained: Sequence[Report]
    ) -> list[tuple[str, list[float | None]]]:
        """Return the columns that clients report, with cells from evaluation and training."""

        def column(metric: str, reports: Sequence[Report] = measured) -> list[float | None]:
            return [report.get(metric) for report in reports]

        def scores(split: str, *models: str) -> list[tuple[str, list[float | None]]]:
            return [
                (
                    score.column(model, split),
                    score.cells(column(score.name + ENDINGS[split] + ENDINGS[model])),
                )
                for score in accuracy_first(self.scores)
                for model in models
                if (score, model) != (LOSS_SCORE, "global")  # it always has a column, see below
            ]

        optional = (
            (
                self.disparity,
                [
                    (f"train_{each.replace('-', '_')}_before_round", column(each, trained))
                    for each in (names.DISPARITY, names.DISPARITY_HARD)
                ],
            ),
            (
                self.validated,
                [
                    *scores("validation", "global"),
                    ("validation_loss_of_global_model", column(names.LOSS + ENDINGS["validation"])),
                ],
            ),
            (self.validated and self.personal, scores("validation", "personal")),
            (
                self.accounts and self.simulated,
                [
                    ("reported_test_accuracy", SHARE.cells(column(names.REPORTED_ACCURACY))),
                    ("reported_test_loss", column(names.REPORTED_LOSS)),
                ],
            ),
            (
                self.accounts,
                [
                    ("test_accuracy_deviation", SHARE.cells(column(names.ACCURACY_DEVIATION))),
                    ("test_loss_deviation", column(names.LOSS_DEVIATION)),
                ],
            ),
            (self.kept, [(PERSONAL_ROUND, column(names.PERSONAL_ROUND))]),
            (
                self.two_classes,
                [(SHARE_OF_LARGER_CLASS, LARGER_CLASS.cells(column(names.LARGER_CLASS)))],
            ),
        )
        return [
            *scores("test", "global", "personal"),
            ("test_loss_of_global_model", column(self.loss)),
            ("train_loss_before_round", column(names.LOSS_BEFORE, trained)),
            (TRAIN_LOSS_OF_GLOBAL_MODEL, column(names.TRAIN_LOSS)),
            *(each for is_written, columns in optional if is_written for each in columns),
        ]


def round_columns(
    method: Method,
    score: Score = ACCURACY,
    validation: Validation | None = None,
    also: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the columns of rounds.csv, by the models, examples and method of the run.

    `also` names the columns of OPTIONAL that the run has.
    """
    models = ("global", "personal") if method.terms(1).has_personal_models else ("global",)
    columns = (
        "round",
        "participants",
        "replies_used",
        "refused",
        "missing",
        "offline",
        *(name for name in OPTIONAL if name in also),
        text_if(method.keeps_states, "lost_states"),
        "clients",
        "clients_scored",
        IMPROVED,
        *(f"{score.column(model)}_{measure}" for model in models for measure in MEASURES),
        getattr(validation, "column", ""),
        *(report.replace("-", "_") for report in method.all_reports),
        "bytes_sent",
        "bytes_received",
        "seconds",
    )
    return tuple(filter(None, columns))


def format_round(
    finished: Round,
    seconds: float,
    reports: Iterable[str] = (),
    score: Score = ACCURACY,
    validation: Validation | None = None,
) -> dict[str, object]:
    """Return a round's row of rounds.csv.

    `reports` are the metrics that the method itself reports.
    """
    measured = finished.evaluations.items()
    before = {
        name: m[names.LOSS_BEFORE]
        for name, m in finished.train_metrics.items()
        if names.LOSS_BEFORE in m
    }
    after = {
        name: m[names.TRAIN_LOSS]
        for name, m in measured
        if name in before and names.TRAIN_LOSS in m
    }
    row: dict[str, object] = {
        "round": finished.number,
        "participants": len(finished.participants),
        "replies_used": len(finished.coefficients),
        "refused": SEPARATOR.join(
            f"{shlex.quote(name)}: {reason.replace('|', '/')}"
            for name, reason in finished.refused.items()
        ),
        "missing": shlex.join(finished.missing),
        "offline": shlex.join(finished.offline),
        "clients": finished.clients or None,
        "bytes_sent": finished.bytes_sent,
        "bytes_received": finished.bytes_received,
        "seconds": round(seconds, 6),
    }
    optional = {
        "owing": finished.owing,
        "revoked": finished.revoked,
        "excluded": finished.excluded,
        "lost_states": finished.lost_states,
    }
    row |= {column: shlex.join(clients) for column, clients in optional.items() if clients}
    if after:
        row[IMPROVED] = percent_improved(before, after)
    row |= _measure_scores(finished, score)
    if validation is not None:
        row[validation.column] = validation.of_round(finished)
    return row | {report.replace("-", "_"): finished.metrics.get(report) for report in reports}


def _measure_scores(finished: Round, score: Score) -> dict[str, object]:
    """Return the score's measures for each kind of model; of noisy scores, only the mean."""
    measures: dict[str, object] = {}
    if finished.evaluations:
        measures["clients_scored"] = 0
    for model in ("global", "personal"):
        if values := scores_by_client(finished, score, score.name + ENDINGS[model]):
            found = summarize(values, lower_is_better=not score.higher_is_better)
            if score.noisy:
                found = {"mean": found["mean"]}
            column = score.column(model)
            measures |= {f"{column}_{measure}": value for measure, value in found.items()}
            measures["clients_scored"] = measures["clients_scored"] or len(values)
    return measures


def scores_by_client(finished: Round, score: Score, metric: str) -> dict[str, float]:
    """Return a metric of the clients by name, in the unit of the tables."""
    reported = {name: each[metric] for name, each in finished.evaluations.items() if metric in each}
    return {
        name: value
        for name, value in zip(reported, score.cells(reported.values()), strict=True)
        if value is not None
    }


def parse_names(cell: str) -> list[str]:
    """Return the names of a cell of a column that names clients, without reasons."""
    return shlex.split(cell)


def parse_refusals(cell: str) -> list[tuple[str, str]]:
    """Parse a cell of the column `refused`, which `format_round` writes."""
    return [(parse_names(each["name"])[0], each["reason"]) for each in REFUSED.finditer(cell)]


def parse_absent(row: Mapping[str, str], kind: str) -> list[str]:
    """Return the clients that a row of rounds.csv names as `kind`, one of ABSENT."""
    cell = row.get(kind, "")
    return [name for name, _ in parse_refusals(cell)] if kind == "refused" else parse_names(cell)

"""What a run records: the tables that its folder has, and the rows that a round adds to each."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairbloom.protocol.names import DISPARITY, LOSS
from fairbloom.protocol.scores import ACCURACY, Score
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.rounds.run_state import RunState

from .csv_rows import ClientRows, Row, Validation, format_round, round_columns
from .files import CLIENTS, COEFFICIENTS, GROUPS, METRICS, ROUNDS, record_rows
from .group_rows import Grouped, format_groups
from .metrics import METRIC_COLUMNS, format_metrics, format_phase
from .stopping import NEVER, NoStopping
from .tables import TableWriter, format_cell


@dataclass(frozen=True, kw_only=True)
class Records:
    """What a run records.

    Attributes
    ----------
    config
        The settings that identify the run, and those that leave the numbers unchanged.
    code
        Checksums of a user's own modules besides those that the settings name.
    about
        What the files of models say of them, in plain values.
    scores, loss
        What clients are measured by: fairness in the first score. `loss` is the loss's metric.
    in_process
        Whether the clients are in this process: rounds shorter than `recorder.SHARED_SECONDS` share
        a checkpoint, and the losses that clients report after a round are those before the next
        one. A deployed client's rows may change.
    validation
        The score that chooses the best model; None: the first of `scores`, on test examples, by the
        measure `best_by`.
    stopping
        The rule that ends the run early.
    groups
        The groups of the clients' examples, each of which is measured; None: there are none.
    two_classes
        Whether the task has two classes.
    accounts
        Whether clients have privacy accounts.
    app_metrics
        Whether all metrics of a user's app are written, which are not known in advance.
    """

    config: Mapping[str, Any]
    code: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[Score] = (ACCURACY,)
    loss: str = LOSS
    in_process: bool = False
    validation: Validation | None = None
    best_by: str = "mean"
    stopping: NoStopping = NEVER
    groups: Grouped | None = None
    two_classes: bool = False
    accounts: bool = False
    app_metrics: bool = False

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    @property
    def chosen_by(self) -> Validation:
        """The score that chooses the best model."""
        on_tests = Validation(self.score, self.score.name, self.best_by, "test")
        return self.validation or on_tests


class RunTable(ABC):
    """A table of a run's folder, to which each round adds rows."""

    writer: TableWriter

    @abstractmethod
    def add(self, finished: Round, state: RunState, row: Row) -> None:
        """Append the rows of a round; `state` knows it, and `row` is that of rounds.csv."""

    def add_initial(self, metrics: Mapping[str, Any]) -> None:  # noqa: B027 (most add nothing)
        """Append metrics of the user's `evaluate_fn` for the initial model, if they belong here."""


class RoundsTable(RunTable):
    """rounds.csv: a row for each round."""

    def __init__(self, path: Path, method: Method, records: Records) -> None:
        deployed = not records.in_process
        possible = {
            "owing": deployed,
            "revoked": deployed and not records.app_metrics,
            "excluded": records.accounts,
            "other_rows": deployed and not records.app_metrics,
        }
        also = [name for name, is_possible in possible.items() if is_possible]
        columns = round_columns(method, records.score, records.validation, also)
        self.writer = TableWriter(ROUNDS.path_in(path), columns)
        self._folder = path
        self._method = method
        self._records = records

    def row(self, finished: Round, seconds: float) -> Row:
        """Return the row of a round; what it says of a site's rows is remembered for the next."""
        records = self._records
        reports = self._method.all_reports
        cells = format_round(finished, seconds, reports, records.score, records.validation)
        columns = self.writer.columns
        row = {name: cells[name] for name in columns if name in cells}
        if "other_rows" in columns:
            row["other_rows"] = shlex.join(record_rows(self._folder, finished))
        return row

    def add(self, finished: Round, state: RunState, row: Row) -> None:
        """Append the row."""
        self.writer.add([[row.get(column) for column in self.writer.columns]])


class ClientsTable(RunTable):
    """clients.csv: a row for each client that evaluated the round's model."""

    def __init__(self, path: Path, method: Method, records: Records) -> None:
        terms = method.terms(1)
        self._rows = ClientRows(
            records.scores,
            # metrics.csv has an app's validation scores, by client.
            validated=records.validation is not None and not records.app_metrics,
            personal=terms.has_personal_models,
            disparity=DISPARITY in method.needs,
            two_classes=records.two_classes,
            kept=terms.keeps_personal_models and not records.app_metrics,
            accounts=records.accounts,
            simulated=records.in_process,
            loss=records.loss,
        )
        self.writer = TableWriter(CLIENTS.path_in(path), self._rows.columns)

    def add(self, finished: Round, state: RunState, row: Row) -> None:
        """Append the rows."""
        self.writer.add(self._rows.rows(finished, state.participations))


class CoefficientsTable(RunTable):
    """coefficients.csv: a row for each used reply."""

    def __init__(self, path: Path) -> None:
        self.writer = TableWriter(COEFFICIENTS.path_in(path), COEFFICIENTS.needed)
        # The names of clients as cells, which are formatted once: a round may take a millisecond.
        self._name_cells: dict[str, str] = {}

    def add(self, finished: Round, state: RunState, row: Row) -> None:
        """Append the rows."""
        for name in finished.coefficients.keys() - self._name_cells.keys():
            self._name_cells[name] = format_cell(name)
        lines = [
            f"{finished.number},{self._name_cells[name]},{value}\n"
            for name, value in sorted(finished.coefficients.items())
        ]
        self.writer.add_lines("".join(lines))


class GroupsTable(RunTable):
    """groups.csv: a row for each group of each client's examples."""

    def __init__(self, path: Path, groups: Grouped) -> None:
        self.writer = TableWriter(GROUPS.path_in(path), groups.columns)
        self._groups = groups

    def add(self, finished: Round, state: RunState, row: Row) -> None:
        """Append the rows."""
        self.writer.add(format_groups(finished, self._groups))


class MetricsTable(RunTable):
    """metrics.csv: a row for each metric of a user's app."""

    def __init__(self, path: Path) -> None:
        self.writer = TableWriter(METRICS.path_in(path), METRIC_COLUMNS)

    def add(self, finished: Round, state: RunState, row: Row) -> None:
        """Append the rows."""
        self.writer.add(format_metrics(finished))

    def add_initial(self, metrics: Mapping[str, Any]) -> None:
        """Append the rows."""
        self.writer.add(format_phase(0, "server", "", metrics))


def tables_of(path: Path, method: Method, records: Records) -> tuple[RunTable, ...]:
    """Return the tables that a run has besides rounds.csv."""
    tables: list[RunTable] = [ClientsTable(path, method, records), CoefficientsTable(path)]
    if records.groups is not None:
        tables.append(GroupsTable(path, records.groups))
    if records.app_metrics:
        tables.append(MetricsTable(path))
    return tuple(tables)

"""A run as its folder tells of it: settings, tables, how the model serves each client, and how far it is."""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError
from fairbloom.imports import is_import_string
from fairbloom.protocol.scores import WHY_UNDEFINED, Score
from fairbloom.protocol.settings import Mark, Value
from fairbloom.rounds.roster import usual_fraction
from fairbloom.server.fairness import summarize
from fairbloom.server.run_folder.csv_rows import ABSENT, HOSTILE, parse_absent, parse_names
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import (
    CLIENTS,
    CONFIG,
    ENGINE,
    GROUPED,
    GROUPS,
    METRICS,
    ROUNDS,
    SCORES,
    SPLIT,
    is_finished,
    is_run_folder,
    read_model,
    read_stop,
    runs_of_study,
    state_of,
)
from fairbloom.server.run_folder.flower import collect_options
from fairbloom.server.settings import default_config
from fairbloom.strategies import find_method, served_model
from fairbloom.tasks import TASKS, TaskInfo
from fairbloom.tasks.tables.targets import join_names

from ..arms import COMMON, Arm, label_of, title
from ..study import NOUNS, Study, find_study
from .group_scores import GroupReport, read_groups
from .presentation import Shown
from .tables import read_frame

if TYPE_CHECKING:
    import pandas
    from torch.nn import Module

    from fairbloom.prediction.predictor import Predictor
    from fairbloom.tasks.split import Split

REPORT = "report.html"
"""The name of a report, in the folder of what it is about."""

LABELLED = frozenset(
    key for key, setting in COMMON.items() if Mark.SENT_TO_CLIENTS not in setting.marks
)
"""The settings of every method that are part of its label; those of clients' work, as the learning
rate, are not."""


def load(folder: str | os.PathLike[str]) -> "Run":
    """Return the run in a folder, finished or not.

    Raise FairbloomError where it holds none, or cannot be read.

    It may be the run folder of `fairbloom run`, of a comparison, of a deployed run, or of a user's
    ServerApp.
    """
    path = Path(folder).absolute()
    if study := find_study(path):
        runs = runs_of_study(path)
        which = f": {join_names(runs)}" if runs else ", once there is one"
        what = f"{path} holds a {NOUNS[study.kind]}, of several runs"
        raise RunFolderError(f"{what}: name one in {path / 'runs'}{which}")
    if not path.exists():
        raise RunFolderError(
            f"there is no folder {path}: fairbloom show lists the runs in the folder runs"
        )
    if not is_run_folder(path):
        raise RunFolderError(
            f"{path} is no run folder: it has no {CONFIG.name}; fairbloom show FOLDER lists the"
            " runs in one"
        )
    return Run(path, dict(CONFIG.read(path).settings), tuple(SCORES.read(path)))


@dataclass(frozen=True)
class Run(Shown):
    """A run.

    Attributes
    ----------
    folder
        Where it lies.
    settings
        Every setting, by its name on the command line.
    scores
        What clients measure on their test sets; fairness is measured in the first.
    """

    folder: Path
    settings: Mapping[str, Any]
    scores: tuple[Score, ...]

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    @property
    def label(self) -> str:
        """The method with those of its parameters that are not at their defaults: `QFedAvg (q=1)`."""
        name = title(str(self.settings.get("method", "?")))
        defaults = default_config()
        parameters = {
            key: value
            for key, value in self.settings.items()
            if (key.startswith(f"{name.lower()}.") or key in LABELLED)
            and value not in ("", defaults.get(key, ""))
        }
        return label_of(name, parameters if "task" in self.settings else {})

    @property
    def task(self) -> TaskInfo | None:
        """What is known of its task.

        None of a user-defined one, which is not imported, or one that is gone.
        """
        return TASKS.get(str(self.settings.get("task", "")))

    @property
    def serves(self) -> str:
        """The model that serves the clients: "global", or "personal" under one of our methods that trains no other."""
        return served_model(str(self.settings.get("method", "")))

    @property
    def models(self) -> tuple[str, ...]:
        """The models that clients may have a score under: the one that `serves`, and "personal"."""
        return tuple(dict.fromkeys((self.serves, "personal")))

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return is_finished(self.folder)

    @property
    def rounds_done(self) -> int:
        """The number of rounds that are recorded."""
        return int(self.rounds["round"].max()) if len(self.rounds) else 0

    @property
    def engine(self) -> Mapping[str, Any] | None:
        """How the clients are computed: the engine, the reason of its choice, and how many processes compute.

        It is None where the clients are other machines.
        """
        return ENGINE.read(self.folder)

    @property
    def num_rounds(self) -> int:
        """The number of rounds that the settings ask for."""
        return int(self.settings.get("num-rounds", 0))

    @property
    def stopped(self) -> str:
        """Why it has stopped before its last round, though it is finished; "" where it has not."""
        return read_stop(self.folder) if self.rounds_done < self.num_rounds else ""

    @property
    def state(self) -> str:
        """What it is doing: finished, running or interrupted."""
        return state_of(self.folder)

    @cached_property
    def rounds(self) -> "pandas.DataFrame":
        """The table rounds.csv: a row a round."""
        return read_frame(ROUNDS, self.folder)

    @cached_property
    def clients(self) -> "pandas.DataFrame":
        """The table clients.csv: a row a client and evaluated round."""
        return read_frame(CLIENTS, self.folder)

    @cached_property
    def groups(self) -> "pandas.DataFrame":
        """The table groups.csv: a row a client, evaluated round, model and group.

        Empty where there are no groups.
        """
        return read_frame(GROUPS, self.folder) if GROUPED.exists_in(self.folder) else frame([])

    @cached_property
    def metrics(self) -> "pandas.DataFrame":
        """The table metrics.csv: a row per metric that a user's app reported; empty of other runs.

        The columns are `round`, `phase` (train, evaluate, or server for `evaluate_fn`), `client`
        ("" where a number is of all together), `metric` and `value`.
        """
        return read_frame(METRICS, self.folder) if METRICS.exists_in(self.folder) else frame([])

    @cached_property
    def gaps(self) -> "pandas.DataFrame":
        """A row a gap between groups after the last evaluated round: of all clients together, and of each."""
        return frame(
            [
                {"model": model, **row}
                for model in self.models
                if (report := self.by_group(model)) is not None
                for row in report.gap_rows()
            ]
        )

    def by_group(self, model: str = "", split: str = "test") -> GroupReport | None:
        """Return counts, scores and gaps of groups after the last evaluated round.

        None where there are no groups.

        Parameters
        ----------
        model
            "global", or "personal" for personal models, which few methods have; by default the one
            that `serves`.
        split
            "test", or "validation" for the examples that a validation share sets apart.
        """
        model = model or self.serves
        grouped = GROUPED.read(self.folder)
        if grouped is None:
            return None
        last = self._evaluated()
        rows = self.groups
        rows = rows[rows["round"].isin(last["round"]) & ~rows["client"].isin(self.attackers)]
        rows = rows[(rows["model"] == model) & (rows["split"] == split)]
        if model != "global" and rows.empty:
            return None
        tested = self.test_examples() if split == "test" else {}
        return read_groups(grouped, rows.to_dict("records"), tested, GROUPS.path_in(self.folder))

    @property
    def summary(self) -> dict[str, Any]:
        """How the model serves the clients after the last evaluated round, and where that stands.

        The measures are those of `fairbloom.server.fairness.summarize`; there are none before the
        first evaluation.
        """
        about = {
            "folder": str(self.folder),
            "task": self.settings.get("task", ""),
            "method": self.label,
            "seed": self.settings.get("seed"),
            "state": self.state,
            "rounds": self.rounds_done,
            "of_rounds": self.num_rounds,
            "score": self.score.name,
            "higher_is_better": self.score.higher_is_better,
            "percent": self.score.percent,
        }
        final = self.final()
        return about | (measures(final, self.score) if final else {})

    def final(
        self,
        score: Score | None = None,
        model: str = "",
        split: str = "test",
        *,
        hostile: bool = False,
    ) -> dict[str, float]:
        """Return the score of each client after the last evaluated round.

        Clients without one are left out.

        Parameters
        ----------
        score
            One of `scores`; by default the one that fairness is measured in.
        model
            "global", or "personal" for personal models, which few methods have; by default the one
            that `serves`.
        split
            "test", or "validation" for the examples that a validation share sets apart.
        hostile
            Whether clients that attack in an experiment are among them.
        """
        score = score or self.score
        model = model or self.serves
        column = score.column(model, split)
        path = CLIENTS.path_in(self.folder)
        rows = self._evaluated(hostile=hostile)
        if column not in rows:
            if len(rows) and split == "test" and (self.finished or model == "global"):
                raise RunFolderError(
                    f"{path} cannot be read: it has no column {column}. Restore it from a copy"
                )
            return {}
        values = self.column(column, hostile=hostile)
        for value in values.values():
            if not math.isfinite(value) or (score.percent and not 0.0 <= value <= 100.0):
                what = f"{score.words} in percent" if score.percent else score.words
                raise RunFolderError(
                    f"{path} has {value:g} for {what}: restore it from a copy, or run again with"
                    " another folder (--out)"
                )
        return values

    @property
    def known(self) -> set[str]:
        """The clients of the last evaluated round, but for attackers.

        Where all are to evaluate, those of any round.
        """
        last = self._evaluated(hostile=True)
        names = set(last["client"])
        if float(self.settings.get("fraction-evaluate", 1.0)) == 1.0:
            names.update(self.clients["client"].unique())
            names.update(
                *self._absent(self.rounds[self.rounds["round"].isin(last["round"])]).values()
            )
        return names.difference(self.attackers)

    def without(self, score: Score, model: str = "global") -> tuple[str, ...]:
        """Return the clients that have no such score after the last evaluated round.

        They have none where it cannot be measured, as an AUC over a single class, or where they
        have no test examples, were refused, missing or offline. Where a share of the clients
        evaluates, others than these are not counted.
        """
        return tuple(sorted(self.known.difference(self.final(score, model))))

    @property
    def unasked(self) -> int:
        """How many known clients were not asked to evaluate the last evaluated round, as a share of them does."""
        last = self.rounds[self.rounds["round"].isin(self._last["round"])]
        known = int(last["clients"].max()) if "clients" in last and last["clients"].any() else 0
        there = set(self._evaluated()["client"]).union(self.without(self.score, self.serves))
        return max(0, known - len(there))

    def test_examples(self, *, hostile: bool = False) -> dict[str, int]:
        """Return how many examples each client was tested on after the last evaluated round.

        See `final`.
        """
        return {
            client: int(count)
            for client, count in self.column("test_examples", hostile=hostile).items()
        }

    def column(self, name: str, *, hostile: bool = False) -> dict[str, float]:
        """Return the numbers of a column of `clients` after the last evaluated round, by client.

        See `final`.

        There is none of a client without a number, and none at all where there is no such column.
        """
        rows = self._evaluated(hostile=hostile)
        pairs = (
            zip(rows["client"].tolist(), rows[name].tolist(), strict=True) if name in rows else ()
        )
        return {client: value for client, value in pairs if not math.isnan(value)}

    def absences(self) -> dict[str, list[tuple[str, int]]]:
        """Return who was refused, missing, offline, each with the number of rounds, the most frequent first."""
        return {
            kind: Counter(names).most_common() for kind, names in self._absent(self.rounds).items()
        }

    @staticmethod
    def _absent(rounds: "pandas.DataFrame") -> dict[str, list[str]]:
        """Return who was refused, missing, offline in some rounds, as often as they were."""
        return {
            kind: [
                name for cell in rounds.get(kind, ()) for name in parse_absent({kind: cell}, kind)
            ]
            for kind in ABSENT
        }

    def left_out(self) -> list[tuple[str, int]]:
        """Return whom the defence left out, each with the number of rounds, the most frequent first."""
        return Counter(
            name for cell in self.rounds.get("left_out", ()) for name in parse_names(cell)
        ).most_common()

    def differing(self) -> dict[str, Value]:
        """Return the settings that are not at their defaults: what a task or a strategy chooses is a default too."""
        usual = dict(default_config())
        method = str(self.settings.get("method", ""))
        # what is not known here any more, or has no defaults
        with contextlib.suppress(FairbloomError, TypeError):
            if "task" in self.settings:
                setup = (self.task or TaskInfo("", "", "", "")).setup({})
                usual |= {
                    "model": setup.model,
                    "clients": setup.clients,
                    "partition": setup.partition,
                }
                usual["fraction"] = usual_fraction(
                    int(self.settings.get("clients", 0)) or len(self.test_examples())
                )
            elif not is_import_string(method):
                usual = {**collect_options(find_method(method)()), "method": ""}
        return {
            key: value
            for key, value in self.settings.items()
            if key != "out" and value != usual.get(key)
        }

    def predictor(
        self, client: str = "", model: str = "last", *, trust: bool = False
    ) -> "Predictor":
        """Return what predicts with the run's model for new data: the module, and how data become its inputs.

        Parameters
        ----------
        client
            The client whose personal model is wanted, or by whose means and deviations numbers are
            standardised.
        model
            "last" for the model after the last round, "best" for the one with the best mean score,
            or "personal".
        trust
            Import the modules that the run's settings name. Importing runs their code.

        Raises
        ------
        FairbloomError
            When there is no such model, a client must be named, there is none of that name, or the
            settings name a module that may not be imported.
        """
        # imported late, as PyTorch is with it
        from fairbloom.prediction.predictor import load_predictor

        return load_predictor(self.folder, client=client, model=model, trust=trust)

    def model(self, client: str = "", model: str = "last") -> "Module":
        """Return the trained model, a torch.nn.Module in eval mode on the CPU; see `predictor`."""
        return self.predictor(client, model).module

    def predict(
        self, frame: "pandas.DataFrame", client: str = "", model: str = "last"
    ) -> "pandas.DataFrame":
        """Return a data frame with all of its columns, then a prediction for each row.

        See `predictor`.

        The columns of inputs may be in any order, and the target may be there or not. Added are
        `predicted_TARGET` and, where classes are predicted, `probability_CLASS` for each of them.
        """
        return self.predictor(client, model).predict(frame)

    def export(
        self,
        *,
        client: str = "",
        model: str = "last",
        out: str | os.PathLike[str] | None = None,
        trust: bool = False,
    ) -> Path:
        """Export the trained model with its preprocessing as ONNX.

        Return the file, by default one in exports/.

        `client`, `model` and `trust` are as in `predictor`. An earlier file is replaced. What was
        written is tried: its predictions are compared with the model's own.

        Raises
        ------
        FairbloomError
            When there is no such model, it cannot be exported, or predicts something else; nothing
            is written then.
        """
        from fairbloom.prediction.export import export_onnx  # imported late, as PyTorch is with it

        return export_onnx(
            self.predictor(client, model, trust=trust), None if out is None else Path(out)
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the global model after the last round: arrays by the names of the module's state dict.

        Raises
        ------
        FairbloomError
            When no round is finished yet, or the model is damaged.
        """
        model = read_model(self.folder)
        if model is None:
            raise RunFolderError(f"{self.folder} has no model yet: no round is finished")
        return model

    def split(self) -> "Split":
        """Return who had which examples of a data set that was dealt to clients on one machine.

        Raises
        ------
        FairbloomError
            When the folder has no split, or its file is damaged.
        """
        split = SPLIT.read(self.folder)
        if split is None:
            raise RunFolderError(
                f"{self.folder} has no {SPLIT.name}: its data were not dealt to clients on this"
                " machine"
            )
        return split

    def shown_name(self, client: str) -> str:
        """Return a client's name as it is shown, with what sets it apart in the data set behind it."""
        return f"{client} ({mark})" if (mark := self._marks.get(client)) else client

    @cached_property
    def _marks(self) -> Mapping[str, str]:
        split = SPLIT.read(self.folder)
        return {} if split is None else dict(zip(split.clients, split.marks, strict=False))

    def __repr__(self) -> str:
        """Return the run in a line."""
        about = f"{self.label}, {self.rounds_done} of {self.num_rounds} rounds, {self.state}"
        final = self.final()
        if final:
            measured = measures(final, self.score)
            mean, worst = (self.score.written(measured[key]) for key in ("mean", "worst_10"))
            about += f", {self.score.words}: mean {mean}, worst 10 % {worst}"
        return f"Run({str(self.folder)!r}: {about})"

    @cached_property
    def attackers(self) -> frozenset[str]:
        """The clients that attack in an experiment, as far as they were evaluated: no measure counts them."""
        table = self.clients
        return frozenset(table["client"][table[HOSTILE] == 1].unique() if HOSTILE in table else ())

    @cached_property
    def _last(self) -> "pandas.DataFrame":
        """The rows of clients.csv of the last round of a finished run.

        Of others, of the last evaluated one.
        """
        table = self.clients
        done = self.finished and not self.stopped
        return table[table["round"] == (self.rounds_done if done else table["round"].max())]

    def _evaluated(self, *, hostile: bool = False) -> "pandas.DataFrame":
        """Return the rows of clients.csv of the last evaluated round; see `final`."""
        rows = self._last
        return rows if hostile or not self.attackers else rows[~rows["client"].isin(self.attackers)]


class OpenedRuns:
    """The runs of a study, of which each is opened once, when it is finished."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study = study
        self._folder = folder
        self._found: dict[str, Run] = {}

    def get(self, arm: Arm, seed: int) -> Run | None:
        """Return a run; None where it is not finished."""
        name = self.study.folder(arm, seed)
        if name not in self._found and self.study.is_done(arm, seed, self._folder):
            self._found[name] = load(self._folder / name)
        return self._found.get(name)


def final_of(run: Run) -> dict[str, float]:
    """Return the score of each client under the final model.

    Raise RunFolderError when no client has one.
    """
    final = run.final()
    if not final:
        raise RunFolderError(
            f"{CLIENTS.path_in(run.folder)} has no test {run.score.words} after the last round:"
            f" {ROUNDS.path_in(run.folder)} says in its columns refused and missing what became of"
            " the clients' replies"
        )
    return final


def measures(values: Mapping[str, float], score: Score) -> dict[str, float]:
    """Return the measures of fairness of a score, one of each client."""
    return summarize(values, lower_is_better=not score.higher_is_better)


def frame(rows: Sequence[Mapping[str, Any]]) -> "pandas.DataFrame":
    """Return rows as a data frame, with NaN for ""."""
    import pandas  # imported late: it takes a second

    return pandas.DataFrame(
        [{name: np.nan if cell == "" else cell for name, cell in row.items()} for row in rows]
    )


# Over which clients each score is a mean, and why it lacks the others -----------------------------


@dataclass(frozen=True)
class Scored:
    """A score under one kind of model."""

    score: Score
    model: str  # "global" or "personal"
    values: Mapping[str, float]  # by client
    lacking: Mapping[str, str]  # why the other clients lack it
    unasked: int = 0  # how many more there are, which were not asked to evaluate

    @property
    def clients(self) -> int:
        """How many clients there are, with the score or without."""
        return len(self.values) + len(self.lacking) + self.unasked

    def as_row(self) -> dict[str, Any]:
        """Return it in plain values: its measures of fairness, and over which clients they are."""
        return {
            "score": self.score.name,
            "model": self.model,
            **measures(self.values, self.score),
            "clients": len(self.values),
            "of_clients": self.clients,
            "without": dict(self.lacking),
        }


def scores_of(run: Run) -> list[Scored]:
    """Return each score that a client has after the last evaluated round, under each kind of model that serves it."""
    found = []
    tested = run.test_examples()
    for score in run.scores:
        for model in run.models:
            if values := run.final(score, model):
                why = WHY_UNDEFINED.get(score.name, "it has no finite value there")
                # A client without test examples, or one that was refused, missing or offline, has
                # no score at all.
                untested = "not tested in the last round"
                lacking = {
                    name: why if name in tested else untested for name in run.without(score, model)
                }
                found.append(Scored(score, model, values, lacking, run.unasked))
    return found


def sentences_of(found: Sequence[Scored]) -> list[str]:
    """Return over which clients each score is a mean, a sentence a reason.

    Nothing of one that all have.

    It is said once where personal models lack it for the same clients.
    """
    shown: list[str] = []
    for place, each in enumerate(found):
        if any(
            (each.score, each.lacking) == (before.score, before.lacking) for before in found[:place]
        ):
            continue
        words = each.score.words
        of = words if each.model == "global" else f"{words} of personal models"
        over = f"{of} is the mean of {len(each.values)} of {each.clients} clients"
        for reason in dict.fromkeys(each.lacking.values()):
            names = ", ".join(name for name, why in each.lacking.items() if why == reason)
            shown.append(f"{over}; without a test {words} ({reason}): {names}")
        if each.unasked and not each.lacking:
            shown.append(f"{over}, those that were asked to evaluate")
    return shown

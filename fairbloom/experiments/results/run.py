"""A run, read from its folder: settings, progress, tables, and the scores of each client."""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import (
    FairbloomError,
    did_you_mean,
    join_names,
)
from fairbloom.protocol.names import ACCURACY, LOSS
from fairbloom.protocol.private import SIMULATED
from fairbloom.protocol.scores import LOSS_SCORE, WHY_UNDEFINED, Score, put_first
from fairbloom.protocol.settings import Mark, RunSettings, Value, key_of, usual_fraction
from fairbloom.rounds.options import Options
from fairbloom.rounds.screening import LARGEST_COUNT
from fairbloom.server.run_folder.csv_rows import (
    ABSENT,
    IMPROVED,
    TRAIN_LOSS_OF_GLOBAL_MODEL,
    parse_absent,
)
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import (
    CLIENTS,
    CONFIG,
    ENGINE,
    GROUPED,
    GROUPS,
    HELD_OUT,
    KNOWN,
    METRICS,
    NOT_IN_TRAINING,
    PRIVACY,
    ROUNDS,
    SCORES,
    SPLIT,
    is_finished,
    is_run_folder,
    read_model,
    read_stop,
    refuse_study,
    state_of,
)
from fairbloom.server.run_folder.flower import collect_options
from fairbloom.server.settings import default_config
from fairbloom.strategies import METHODS, FairStrategy, canonical, served_model
from fairbloom.strategies.named import COMMON, title
from fairbloom.strategies.torchjd import TORCHJD
from fairbloom.tasks import TASKS, TaskInfo

from ..arms import Arm, label_of
from ..study import Study
from .group_scores import GroupReport, read_groups
from .noise import EXACT, Values, described, estimates
from .presentation import Shown
from .tables import is_shown, mean_of, read_frame

if TYPE_CHECKING:
    import pandas
    from torch.nn import Module

    from fairbloom.prediction.predictor import Predictor
    from fairbloom.tasks.split import Split

# What every page says of a run without test examples.
ALL_TRAINED = "no test rows: trained on all rows"

# The name of a report in the folder of its run or study.
REPORT = "report.html"

# The settings of every method that are part of its label, without settings of the clients'
# training, such as the learning rate.
LABELLED = frozenset(
    key for key, setting in COMMON.items() if Mark.SENT_TO_CLIENTS not in setting.marks
)

# The settings in the run folder of an app, besides those with a dot, that are not parameters of its
# method.
NOT_OF_METHODS = {
    "method",
    "num-rounds",
    "loss",
    "wrapped-in",
    "early-stopping",
    "validation-metric",
}.union(map(key_of, Options.__optional_keys__))


def load(folder: str | os.PathLike[str], score: str = "") -> "Run":
    """Return the run in a folder, finished or not.

    It may be the run folder of `fairbloom run`, of a comparison, of a deployed run, or of a user's
    ServerApp. Fairness is measured in `score`, by default in the run's own. Raise FairbloomError if
    the folder holds no run or cannot be read, or if its clients did not measure that score.
    """
    path = Path(folder).absolute()
    refuse_study(path)
    if not path.exists():
        raise RunFolderError(f"no folder {path}: name the folder of a run or a study")
    if not is_run_folder(path):
        raise RunFolderError(
            f"{path} is not a run folder: it has no {CONFIG.name}; name that of a run"
        )
    scores = SCORES.read(path)
    known = {each.name: each for each in (*scores, LOSS_SCORE)}
    if score and score not in known:
        raise RunFolderError(
            f"score = {score!r}: {did_you_mean(score, known)}the clients of the run in {path}"
            f" measured {', '.join(known)}"
        )
    return Run(
        path,
        dict(CONFIG.read(path).settings),
        put_first(scores, known[score or scores[0].name]),
    )


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """A run.

    Attributes
    ----------
    folder
        The run folder.
    settings
        Every setting, by its name on the command line.
    scores
        The scores that clients measure on their test sets; fairness is measured in the first.
    """

    folder: Path
    settings: Mapping[str, Any]
    scores: tuple[Score, ...]

    @property
    def score(self) -> Score:
        """The score that fairness is measured in."""
        return self.scores[0]

    @property
    def method(self) -> str:
        """The method's name in settings; in a user's app, the name of a class of the user's own."""
        return canonical(str(self.settings.get("method", "?")))

    @property
    def of_app(self) -> bool:
        """Whether it is the run of a user's ServerApp, which has no task."""
        return "task" not in self.settings

    @property
    def parameters(self) -> dict[str, Value]:
        """The method's parameters and common options that are not at their defaults."""
        if self.of_app:
            return {
                key: value
                for key, value in self.differing().items()
                if key in LABELLED or not ("." in key or key in NOT_OF_METHODS)
            }
        defaults = default_config()
        owner = title(self.method).lower()
        return {
            key: value
            for key, value in self.settings.items()
            if (key.startswith(f"{owner}.") or key in LABELLED)
            and value not in ("", defaults.get(key, ""))
        }

    @property
    def label(self) -> str:
        """The method with its parameters that are not at their defaults: `QFedAvg (q=1)`."""
        return label_of(title(self.method), self.parameters)

    @property
    def task(self) -> TaskInfo | None:
        """The catalogue entry of its task.

        None for a user-defined task, which is not imported, and for one that no longer exists.
        """
        return TASKS.get(str(self.settings.get("task", "")))

    @property
    def serves(self) -> str:
        """The clients' model: "global", or "personal" if no other is trained as a whole.

        Where clients keep parameters, the common model has the initial values of these.
        """
        if self.settings.get("personal-parameters"):
            return "personal"
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
        """The engine and the reason for its choice.

        None if the clients are other machines.
        """
        return ENGINE.read(self.folder)

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The clients' privacy accounts after the last round, and whether they are simulated.

        Empty if no client has one, or the run is not over.
        """
        return PRIVACY.read(self.folder)

    @property
    def num_rounds(self) -> int:
        """The number of rounds that the settings ask for."""
        return int(self.settings.get("num-rounds", 0))

    @property
    def stopped(self) -> str:
        """The reason why a finished run stopped before its last round, "" if it did not."""
        return read_stop(self.folder) if self.rounds_done < self.num_rounds else ""

    @property
    def untested(self) -> bool:
        """Whether its clients have no test examples, as they train on all rows."""
        return self.settings.get("test-share") == 0.0

    @property
    def state(self) -> str:
        """Its state: finished, running or interrupted."""
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
        """The table groups.csv: a row a client, evaluated round, model and group; may be empty."""
        return read_frame(GROUPS, self.folder) if GROUPED.exists_in(self.folder) else frame([])

    @cached_property
    def metrics(self) -> "pandas.DataFrame":
        """The table metrics.csv: a row per metric of a user's app; empty for other runs.

        The columns are `round`, `phase` (train, evaluate, or server for `evaluate_fn`), `client`
        ("" for a number over all clients), `metric` and `value`.
        """
        return read_frame(METRICS, self.folder, optional=True)

    @cached_property
    def gaps(self) -> "pandas.DataFrame":
        """A row a gap between groups after the last evaluated round, also over all clients."""
        rows = []
        for model in self.models:
            report = self.by_group(model)
            if report:
                rows += [{"model": model, **row} for row in report.gap_rows()]
        return frame(rows)

    def by_group(self, model: str = "", split: str = "test") -> GroupReport | None:
        """Return the groups after the last evaluated round, None if there are none.

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
        rows = self.groups
        rows = rows[
            rows["round"].isin(self._last["round"])
            & (rows["model"] == model)
            & (rows["split"] == split)
        ]
        if model != "global" and rows.empty:
            return None
        tested = self.test_examples() if split == "test" else {}
        return read_groups(grouped, rows.to_dict("records"), tested, GROUPS.path_in(self.folder))

    @property
    def summary(self) -> dict[str, Any]:
        """The measures of fairness after the last evaluated round, with the settings and the state.

        The measures are as in `fairbloom.server.fairness.summarize`, and with noise as in
        `noise.estimates`; before the first evaluation it has no measures.
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
        if final := self.final():
            about |= described(estimates(final, self.score, self.noise()))
        return about

    def final(
        self,
        score: Score | None = None,
        model: str = "",
        split: str = "test",
    ) -> dict[str, float]:
        """Return the score of each client after the last evaluated round.

        Clients without one, or with an impossible one, are left out.

        Parameters
        ----------
        score
            One of `scores`; by default the one that fairness is measured in.
        model
            "global", or "personal" for personal models, which few methods have; by default the one
            that `serves`.
        split
            "test", or "validation" for the examples that a validation share sets apart; in an app's
            run, the metric that its RunFolder names as `best_model`, in the unit of the score.
        """
        score = score or self.score
        model = model or self.serves
        if self.of_app and split == "validation":
            return self._validated(score)
        column = score.column(model, split)
        rows = self._last
        if column not in rows:
            # Of personal models, the loss is only written if fairness was measured in it.
            is_written = model == "global" or (self.finished and score != LOSS_SCORE)
            if len(rows) and split == "test" and is_written:
                raise RunFolderError(
                    f"{CLIENTS.path_in(self.folder)} cannot be read: it has no column {column}."
                    " Restore it from a copy"
                )
            return {}
        unit = score.shown(1.0)
        noise = self.noise(score) if split == "test" else EXACT
        return {
            client: value
            for client, value in self.column(column).items()
            # with noise, a share may be below 0 or above 1: without these, means would be biased
            if score.has(value / unit) or client in noise
        }

    def _validated(self, score: Score) -> dict[str, float]:
        """Return each client's validation metric in an app's run, if it is a value of the score."""
        rows = self.metrics
        if rows.empty:
            return {}
        last = self._last
        rows = rows[
            rows["round"].isin(last["round"])
            & rows["client"].isin(last["client"])
            & (rows["phase"] == "evaluate")
            & (rows["metric"] == self.settings.get("validation-metric"))
        ]
        return {
            client: score.shown(value)
            for client, value in zip(rows["client"].tolist(), rows["value"].tolist(), strict=True)
            if score.has(value)
        }

    def noise(self, score: Score | None = None, *, simulated: bool = False) -> dict[str, float]:
        """Return the standard deviation of the noise in the scores of `final`, in their unit.

        Only clients with the noise of a privacy account are in it. The scores of a simulation are
        exact, and another column has what devices would report. With `simulated`, it is the noise
        of that column.
        """
        if simulated != (self.settings.get("privacy.mode") == SIMULATED):
            return {}
        name = (score or self.score).name.replace("-", "_")
        deviations = self.column(f"test_{name}_deviation")
        return {client: deviation for client, deviation in deviations.items() if deviation > 0.0}

    def held_out(self, kind: str = NOT_IN_TRAINING, score: Score | None = None) -> dict[str, float]:
        """Return the score of each client that is not in training, under the final common model.

        Clients without one are left out. It is {} without `held-out-clients`, and until the run is
        over.

        Parameters
        ----------
        kind
            "not in training"; with `fine-tune-epochs` also "not in training, 5 rows" and "not in
            training, 20 rows", after fine-tuning on so many of a client's training examples.
        score
            One of `scores`; by default the one that fairness is measured in.
        """
        if not self.finished:
            return {}
        return {
            client: value
            for client, scores in HELD_OUT.read(self.folder).get(kind, {}).items()
            if (value := scores.get((score or self.score).name)) is not None
        }

    @property
    def known(self) -> set[str]:
        """The clients of the last evaluated round.

        If all clients evaluate, it includes the clients of other rounds.
        """
        last = self._last
        names = set(last["client"])
        if float(self.settings.get("fraction-evaluate", 1.0)) == 1.0:
            names.update(self.clients["client"].unique())
            in_last = self.rounds["round"].isin(last["round"])
            names.update(*self._absent(self.rounds[in_last]).values())
        return names

    def without(self, score: Score, model: str = "global") -> tuple[str, ...]:
        """Return the clients without a score after the last evaluated round.

        Either the score is undefined, such as an AUC over a single class, or they have no test
        examples, or were refused, missing or offline. Clients that were not asked to evaluate are
        not among them.
        """
        return tuple(sorted(self.known.difference(self.final(score, model))))

    @property
    def unasked(self) -> int:
        """The number of known clients that were not asked in the last evaluated round."""
        last = self.rounds[self.rounds["round"].isin(self._last["round"])]
        counts = filter(is_shown, last.get("clients", ()))
        known = int(max(counts, default=0))
        asked = self.tested.union(self.without(self.score, self.serves))
        return max(0, known - len(asked))

    @property
    def tested(self) -> set[str]:
        """The clients of the last evaluated round that evaluated."""
        return set(self._last["client"])

    def test_examples(self) -> dict[str, int]:
        """Return the clients' numbers of test examples in the last evaluated round."""
        return {
            client: int(count)
            for client, count in self.column("test_examples").items()
            if 1 <= count <= LARGEST_COUNT
        }

    def column(self, name: str) -> dict[str, float]:
        """Return a column of `clients` for the last evaluated round, by client.

        Clients without a number that can be shown are left out; {} without the column.
        """
        rows = self._last
        if name not in rows:
            return {}
        return {
            client: value
            for client, value in zip(rows["client"].tolist(), rows[name].tolist(), strict=True)
            if is_shown(value)
        }

    @property
    def training(self) -> dict[str, float]:
        """Measures of training that are known, by name.

        `improved`, the percentage of participants with a training loss that did not rise, as the
        mean over the rounds in which clients evaluated; the same in the last third of the rounds;
        and the clients' mean training loss of the last evaluated round.
        """
        improved = zip(self.rounds["round"], self.rounds.get(IMPROVED, ()), strict=False)
        cells = {number: cell for number, cell in improved if is_shown(cell)}
        two_thirds = self.num_rounds * 2 // 3
        found = {
            "improved": [*cells.values()],
            "improved_last_third": [cell for number, cell in cells.items() if number > two_thirds],
            "train_loss": [*self.column(TRAIN_LOSS_OF_GLOBAL_MODEL).values()],
        }
        return {name: mean_of(values) for name, values in found.items() if values}

    def after(self, number: int) -> "Run":
        """Return the run as it stood after an evaluated round: its tables have only that round.

        Its scores, groups and measures of training are of that round; without an evaluation it has
        none.
        """
        earlier = replace(self)
        clients = self.clients[self.clients["round"] == number]
        # cached properties, which would read the files again for each round
        vars(earlier).update(
            rounds=self.rounds[self.rounds["round"] == number],
            clients=clients,
            groups=self.groups,
            _last=clients,
        )
        return earlier

    def absences(self) -> dict[str, list[tuple[str, int]]]:
        """Return the clients that were absent in each way, most frequent first, with rounds."""
        return {
            kind: Counter(names).most_common() for kind, names in self._absent(self.rounds).items()
        }

    @staticmethod
    def _absent(rounds: "pandas.DataFrame") -> dict[str, list[str]]:
        """Return the clients that were absent in each way, once for each of some rounds."""
        return {
            kind: [
                name for cell in rounds.get(kind, ()) for name in parse_absent({kind: cell}, kind)
            ]
            for kind in ABSENT
        }

    def differing(self) -> dict[str, Value]:
        """Return the settings that differ from the defaults, also of task and strategy."""
        usual = dict(default_config())
        # A task or method may no longer exist, or have no defaults.
        with contextlib.suppress(FairbloomError, TypeError):
            if not self.of_app:
                setup = (self.task or TaskInfo("", "", "", "")).setup(RunSettings.of({}))
                usual |= {
                    "model": setup.model,
                    "clients": setup.clients,
                    "partition": setup.partition,
                    "fraction": usual_fraction(
                        int(self.settings.get("clients", 0)) or len(self.test_examples())
                    ),
                }
            else:  # the defaults of a class of the user's own are not known
                usual = {**collect_options(METHODS.get(self.method, FairStrategy)()), "method": ""}
                if self.method.startswith(TORCHJD):  # which has no prior
                    usual["weighting"] = "uniform"
        return {
            key: value
            for key, value in self.settings.items()
            if key != "out" and value != usual.get(key)
        }

    def predictor(
        self, client: str = "", model: str = "last", *, trust: bool = False
    ) -> "Predictor":
        """Return a predictor for new data: the trained module with its preprocessing.

        Parameters
        ----------
        client
            The client that has the personal model, or the means and deviations that
            standardise numbers.
        model
            "last" for the model after the last round, "best" for the one with the best mean score,
            or "personal".
        trust
            Import the modules that the run's settings name. Importing runs their code.

        Raises
        ------
        FairbloomError
            When the model does not exist, a client must be named, no client has that name, or the
            settings name a module that may not be imported.
        """
        # imported late, as PyTorch is with it
        from fairbloom.prediction.predictor import load_predictor

        return load_predictor(self.folder, client=client, model=model, trust=trust)

    def model(self, client: str = "", model: str = "last") -> "Module":
        """Return the trained model, a torch.nn.Module in eval mode on the CPU; see `predictor`.

        Only a personal model needs a client.
        """
        # imported late, as PyTorch is with it
        from fairbloom.prediction.predictor import load_predictor

        return load_predictor(self.folder, client=client, model=model, module_only=True).module

    def predict(
        self, frame: "pandas.DataFrame", client: str = "", model: str = "last"
    ) -> "pandas.DataFrame":
        """Return a data frame with columns of predictions added; see `predictor`.

        The columns of inputs may be in any order, and the target is optional. Added are
        `predicted_TARGET` and, for a classifier, `probability_CLASS` for each class.
        """
        return self.predictor(client, model).predict(frame)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the global model after the last round as a state dict of arrays.

        Raises
        ------
        FairbloomError
            When no round is finished, or the model is damaged.
        """
        model = read_model(self.folder)
        if model is None:
            raise RunFolderError(f"{self.folder} has no model yet: no round is finished")
        return model

    def split(self) -> "Split":
        """Return the partition of a data set that was split among clients on this machine.

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
        """Return a client's display name: the name, and its mark in the data set if it has one."""
        mark = self._marks.get(client)
        return f"{client} ({mark})" if mark else client

    @cached_property
    def _marks(self) -> Mapping[str, str]:
        split = SPLIT.read(self.folder)
        return {} if split is None else dict(zip(split.clients, split.marks, strict=False))

    @cached_property
    def _last(self) -> "pandas.DataFrame":
        """The rows of clients.csv for the last round of a finished run, else the last evaluated."""
        table = self.clients
        last = self.rounds_done if self.finished and not self.stopped else table["round"].max()
        return table[table["round"] == last]


class OpenedRuns:
    """The finished runs of a study, each opened once."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study = study
        self._folder = folder
        self._opened: dict[str, Run] = {}

    def get(self, arm: Arm, seed: int) -> Run | None:
        """Return a run, None if it is not finished."""
        name = self.study.folder(arm, seed)
        if name not in self._opened and self.study.is_done(arm, seed, self._folder):
            self._opened[name] = load(self._folder / name)
        return self._opened.get(name)


def final_of(run: Run) -> dict[str, float]:
    """Return the score of each client under the final model; raise RunFolderError without any."""
    final = run.final()
    if not final:
        look = f"see the columns refused and missing in {ROUNDS.path_in(run.folder)}"
        raise RunFolderError(
            f"{CLIENTS.path_in(run.folder)} has no test {run.score.words} after the last round:"
            f" {ALL_TRAINED if run.untested else look}"
        )
    return final


def frame(rows: Sequence[Mapping[str, Any]]) -> "pandas.DataFrame":
    """Return rows as a data frame, with NaN for ""."""
    import pandas  # imported late: it takes a second

    filled = []
    for row in rows:
        filled.append({name: np.nan if cell == "" else cell for name, cell in row.items()})
    return pandas.DataFrame(filled)


# The clients that have each score, and why others do not ------------------------------------------


@dataclass(frozen=True)
class Scored:
    """A score under one kind of model."""

    score: Score
    model: str  # "global", "personal", or a kind of `Run.held_out`
    values: Mapping[str, float]  # by client
    lacking: Mapping[str, str]  # by client without the score, the reason
    unasked: int = 0  # the number of other clients, not asked to evaluate
    noise: Values = field(default_factory=dict)  # see `Run.noise`

    @property
    def clients(self) -> int:
        """The number of clients, with the score or without."""
        return len(self.values) + len(self.lacking) + self.unasked

    def as_row(self) -> dict[str, Any]:
        """Return its measures of fairness and its clients in plain values."""
        return {
            "score": self.score.name,
            "model": self.model,
            **described(estimates(self.values, self.score, self.noise)),
            "clients": len(self.values),
            "of_clients": self.clients,
            "without": dict(self.lacking),
        }


def scores_of(run: Run) -> list[Scored]:
    """Return the scores after the last evaluated round, under each kind of model.

    Last come the clients that are not in training.
    """
    found = []
    tested = run.tested
    for score in run.scores:
        undefined = WHY_UNDEFINED.get(score.name, "it has no finite value there")
        if KNOWN.exists_in(run.folder):
            undefined = f"{undefined}, or too few examples for its device to send it"
        for model in run.models:
            values = run.final(score, model)
            if not values:
                continue
            # Clients that were refused, missing or offline have no test examples either.
            lacking = dict.fromkeys(run.without(score, model), "not tested in the last round")
            lacking |= {name: undefined for name in lacking if name in tested}
            held_back = _held_back(run, score)
            lacking |= {name: held_back[name] for name in lacking if name in held_back}
            found.append(Scored(score, model, values, lacking, run.unasked, run.noise(score)))
        # A continued run still has those of its former end.
        held_out = HELD_OUT.read(run.folder) if run.finished else {}
        for kind, every in held_out.items():
            values = run.held_out(kind, score)
            untested = [name for name in every if name not in values]
            lacking = dict.fromkeys(untested, f"not tested, or {undefined}")
            found.append(Scored(score, kind, values, lacking))
    return found


def _held_back(run: Run, score: Score) -> dict[str, str]:
    """Return why clients with privacy accounts do not report a score; a simulation is exact."""
    if run.privacy.get("simulated"):
        return {}
    accounts = run.privacy.get("clients", {})
    if score.name not in (ACCURACY, LOSS):
        return dict.fromkeys(accounts, "privacy accounts report only accuracy and loss")
    return {
        client: "held back, as no test report is left in the privacy account"
        for client, account in accounts.items()
        if account["reports"] < 1.0
    }


def sentences_of(found: Sequence[Scored]) -> list[str]:
    """Return sentences on the clients without a score, one for each reason.

    Personal models that miss the score for the same clients are not repeated.
    """
    shown: list[str] = []
    seen = list[tuple[Score, Mapping[str, str]]]()
    for scored in found:
        if (scored.score, scored.lacking) in seen:
            continue
        seen.append((scored.score, scored.lacking))
        words = scored.score.words
        of = {"global": words, "personal": f"{words} of personal models"}.get(
            scored.model, f"{words} of clients {scored.model}"
        )
        over = f"{of} is the mean of {len(scored.values)} of {scored.clients} clients"
        for reason in dict.fromkeys(scored.lacking.values()):
            names = join_names(name for name, why in scored.lacking.items() if why == reason)
            shown.append(f"{over}; without a test {words} ({reason}): {names}")
        if scored.unasked and not scored.lacking:
            shown.append(f"{over}, those that were asked to evaluate")
    return shown

"""A site that took no part in a run: how the run's model serves it on its own data, and a personal model from that."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairbloom.client.kept import About, keep_model
from fairbloom.client.local import LocalClient
from fairbloom.client.preprocessing import keep_preprocessing
from fairbloom.client.rules.personal import PersonalModel
from fairbloom.client.states import KeptVersions, StateDict
from fairbloom.client.work import run_work
from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.names import AGREED as AGREEMENT
from fairbloom.protocol.names import NUM_EXAMPLES, PERSONAL
from fairbloom.protocol.scores import LOSS_SCORE, Score, put_first
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors
from fairbloom.server.run_folder.files import AGREED, BEST, CONFIG, MODEL, ROUNDS, is_finished
from fairbloom.strategies import served_model
from fairbloom.system.sealed import Arrays
from fairbloom.tasks import find_task, load_task
from fairbloom.tasks.files.targets import join_names
from fairbloom.tasks.model_loss import is_of_model
from fairbloom.tasks.score import decide_score

from .paired import Measure, interval_of, paired_p_value
from .predictor import settings_in

EPOCHS, STRENGTH = 10, 1.0
"""Passes over a newcomer's training examples, and the strength of the pull to the global model if the run has none."""

MODELS = {"last": MODEL, "best": BEST}


class NewcomerError(FairbloomError):
    """A run that cannot be evaluated on a site's data; the message says why, and what to do."""


class Newcomer:
    """A site that took no part in a run.

    `run` is a finished run folder or a client's own folder of one; `client` is "" where the data are of one client;
    `model` is "last" or "best"; `strength` is the pull of the personal model, None before there is one.
    """

    def __init__(self, run: Path, data_dir: str = "", client: str = "", model: str = "last") -> None:
        self._run = run.absolute()
        self._agreed, settings = AGREED.read(self._run), settings_in(self._run)
        here: dict[str, Value] = {"data-dir": data_dir, "state-dir": "", "device": "auto", "pooled": False}
        self._config: dict[str, Any] = {**settings, **here, AGREEMENT: self._agreed}
        self._arrays, self._about = _model_in(self._run, model)
        self.round = self._about.round
        find_task(str(settings["task"])).check_readable(data_dir)
        clients = self._find_clients()
        self.name = _find_client(clients, client, data_dir)
        try:
            self._local = LocalClient.of(self._config, clients.index(self.name), self.name)
        except FairbloomError as error:
            raise NewcomerError(f"the data of {self.name} do not fit the run in {self._run}: {error}") from error
        self._received: StateDict = {name: torch.as_tensor(np.array(array)) for name, array in self._arrays.items()}
        self.strength: float | None = None

    @property
    def scores(self) -> tuple[Score, ...]:
        """What its examples are measured by, as those of the run's clients were; fairness goes by the first."""
        task = self._local.task
        return put_first(task.scores, decide_score(self._local.settings, task, deployed=True))

    @property
    def usual_strength(self) -> float:
        """The pull to the global model with which the run's clients trained personal ones; STRENGTH where none did."""
        settings = self._local.settings
        of_ditto = settings.parameters.get("ditto.lam") if settings.method == "ditto" else None
        return float(of_ditto or settings.personal_lambda or STRENGTH)

    @property
    def train_examples(self) -> int:
        """How many examples it trains on, and takes its means and deviations from."""
        return len(self._local.splits.train)

    @property
    def test_examples(self) -> int:
        """How many examples it is tested on."""
        return len(self._local.splits.test)

    @property
    def test_classes(self) -> int | None:
        """How many different classes its test examples have; None where targets are no classes."""
        if not self._local.task.classes:
            return None
        _, targets = self._local.splits.test[:]
        return len(torch.unique(targets))

    def personalise(self, epochs: int = EPOCHS, strength: float | None = None) -> None:
        """Train a personal model from the global one, as Ditto does; 0 has no pull, None means `usual_strength`."""
        self.strength = self.usual_strength if strength is None else strength
        terms = self._terms(epochs)
        work = PersonalModel(terms).after(run_work(self._local.settings, terms.server_round))
        self._local.train_own(self._received, terms, work)

    def measure(self) -> Mapping[str, Mapping[str, float]]:
        """Return the finite test scores by name, in the tables' unit: of the model "global", and of "personal"."""
        found = self._local.evaluate(self._received, self._terms())
        if not found[NUM_EXAMPLES]:
            raise NewcomerError(f"{self.name} has no test examples: it needs more rows")
        models = {"global": "", **({} if self.strength is None else {PERSONAL: f"-{PERSONAL}"})}
        return {
            model: {each.name: each.shown(found[name]) for each in self.scores if (name := each.name + end) in found}
            for model, end in models.items()
        }

    def judge(self) -> tuple[tuple[float, float] | None, dict[str, float]]:
        """Return the 95 % interval of the first score, and the p-values of personal against global model by score."""
        both = [False] if self.strength is None else [False, True]
        found = [self._local.answers(self._received, self._terms(), personal=each).batches for each in both]
        if any(len(batches) > 1 for batches in found):  # outputs of several shapes
            return None, {}
        (before, targets), *personal = [(each.cpu(), wanted.cpu()) for ((each, wanted),) in found]
        first, measures = self.scores[0], {each: of for each in self.scores if (of := self._measure_of(each))}
        interval = interval_of(first, measures[first], before, targets) if first in measures else None
        p_values = {
            score.name: paired_p_value(score, of, before, after, targets)
            for after, _ in personal
            for score, of in measures.items()
        }
        return interval and (first.shown(interval[0]), first.shown(interval[1])), p_values

    def _measure_of(self, score: Score) -> Measure | None:
        """Return what measures a score of outputs and targets; None where its numbers do not come from these alone."""
        task = self._local.task
        if score == LOSS_SCORE:
            return None if is_of_model(task.loss) else task.loss
        return task.scores[score]

    def keep(self, folder: Path) -> None:
        """Write what predicts at this site into a folder: model, settings, agreement, preprocessing, personal model."""
        check_free(folder)
        with explain_write_errors("what predicts here", folder):
            keep_model(folder, self._config, self._agreed, self._arrays, self._about)
            keep_preprocessing(folder, self._local.task, self._local.key)
            if (last := self._local.personal.last) is not None:
                KeptVersions(folder).keep(*last)

    def _find_clients(self) -> Sequence[str]:
        """Return the clients that have data there; a file without a column of clients is of one site."""
        try:
            return load_task(self._config).clients
        except FairbloomError:
            if not self._config.get("csv.client"):
                raise
            self._config["csv.client"] = ""
            return load_task(self._config).clients

    def _terms(self, epochs: int | None = None) -> Terms:
        return Terms(
            server_round=self.round + 1,
            agreed=self._agreed,
            personal_lambda=self.strength,
            personal_epochs=epochs,
        )


def check_free(folder: Path) -> None:
    """Raise FairbloomError where something lies in a folder that is to be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} is there already: name another folder by --out, or remove it")


def _model_in(folder: Path, model: str) -> tuple[Arrays, About]:
    if model not in MODELS:
        raise NewcomerError(f"model = {model!r}: {did_you_mean(model, MODELS)}there are {', '.join(MODELS)}")
    file = MODELS[model]
    if not is_finished(folder):
        raise NewcomerError(f"the run in {folder} is not finished: evaluate it when it is over")
    if not file.exists_in(folder):
        raise NewcomerError(f"{folder} has no {file.name}: no round was evaluated; take model last")
    written = MODEL.read_about(folder)
    if PERSONAL in (written.get("serves"), served_model(str(CONFIG.read(folder).settings.get("method", "")))):
        raise NewcomerError(
            f"the run in {folder} trains no global model, so it has none for another site: evaluate a run of another "
            "method, ditto say"
        )
    last = written.get("round") or max((int(row["round"]) for row in ROUNDS.read(folder)), default=0)
    about = About(str(written.get("run", folder.name)), int(last), file.read_checksum(folder))
    return file.read(folder), about


def _find_client(clients: Sequence[str], client: str, data_dir: str) -> str:
    if client and client not in clients:
        raise NewcomerError(
            f"client = {client!r}: {data_dir or 'the task'} has no data of a client that is called like that: "
            f"{did_you_mean(client, clients)}there are {join_names(clients)}"
        )
    if not client and len(clients) != 1:
        raise NewcomerError(
            f"{data_dir or 'the task'} has the data of {len(clients)} clients: say which one by --client: "
            f"{join_names(clients)}"
        )
    return client or clients[0]

"""A method under test: it is asked in made-up cohorts and real rounds, and its errors are explained."""

import logging
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.client.metrics import OF_EVALUATION, OF_TRAINING, WORK_METRICS
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import Value
from fairbloom.rounds.aggregation import cohort_of, compute_coefficients, rows_after
from fairbloom.rounds.clients import Trained
from fairbloom.rounds.cohort import Cohort, Kept, MethodError, UnneededMetricError
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.round import Round
from fairbloom.rounds.screening import Refusals
from fairbloom.rounds.updates import FloatArray, Model, Updates, Vectors
from fairbloom.server.settings import Settings
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import load_task

ROUNDS = 50
"""T, the rounds of the run that a method under test believes to be in."""

TAKING_PART = ([3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2], [1, 2], [0, 3, 4, 5])
"""The clients, of six, that take part in rounds that follow each other."""

MEASURED = (
    *(each.pattern.format(score) for each in OF_TRAINING for score in (wire.LOSS, wire.ACCURACY)),
    *(*WORK_METRICS, *sorted(wire.BETWEEN_GROUPS), wire.NUM_EXAMPLES),
)
"""What Fairbloom's own clients report of their training, of every task of classes, where a method asks for it."""

EVEN = "fairbloom.experiments.battery.even:task"
"""The task of real clients whose examples are in two groups."""

ABSENT = "client-absent"
"""A client that the server knows, and that takes part in no made-up round."""

ARRAYS = ("first.weight", "first.bias", "second.weight")
"""The arrays of the model in made-up cohorts."""

REPORTED_BY = {
    **dict.fromkeys(("needs", "terms", "choose", "probe"), "needs"),
    **dict.fromkeys(("remember", "recalls", "sends"), "memory"),
    **{"__init__": "parameters", "weigh": "shape", "own_metrics": "reports"},
}
"""The property that reports what a method's function raises."""

EVALUATED = tuple(each.pattern.format(score) for each in OF_EVALUATION for score in (wire.LOSS, wire.ACCURACY))
"""What Fairbloom's clients report when they evaluate, and not when they train."""


class Failure(Exception):  # noqa: N818 (it is no error of the program: a property of the method under test failed)
    """A property of the method under test failed.

    Each of `reporters` names a property that reports this fault wherever it occurs; none: the one being checked.
    """

    def __init__(self, message: str, *reporters: str) -> None:
        super().__init__(message)
        self.reporters = reporters


class NotApplicable(Exception):  # noqa: N818 (as above)
    """A property cannot be checked with this method; the message says why."""


class Raised(NamedTuple):
    """An error: the function of the code under test that raised, "" for none, its line there, and a sentence on it."""

    function: str
    line: str
    words: str

    @classmethod
    def of(cls, error: Exception, files: Collection[str]) -> "Raised":
        """Return what is known of an error where the code under test lies in these files."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
        what = f"{type(error).__name__}: {error}".removesuffix(".")
        if not frames:
            return cls("", "", f"this came up: {what}.")
        function, last = frames[0].name, frames[-1]
        place = f"{Path(last.filename).name}, line {last.lineno}: `{last.line}`"
        return cls(function, last.line or "", f"{function} raised {what} ({place}).")


# Cohorts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The replies of the clients of one round; arrays have a row per client."""

    description: str  # for example "3 clients that did not move"
    names: tuple[str, ...]  # ascending
    updates: FloatArray  # shape (m, d)
    seconds: FloatArray  # the second updates, of methods that ask for two; shape (m, d)
    losses: FloatArray
    baselines: FloatArray  # losses of models that clients have trained alone
    accuracies: FloatArray
    rates: FloatArray
    disparities: FloatArray
    of_groups: FloatArray  # positive examples of two groups, and those of them that are found; shape (m, 4)
    counts: FloatArray
    draws: FloatArray

    def column(self, metric: str) -> FloatArray:
        """Return what the clients report by a metric's name; the loss stands for what nobody here knows."""
        known: dict[str, FloatArray] = {
            **{each.pattern.format(wire.ACCURACY): self.accuracies for each in OF_TRAINING},
            wire.NUM_EXAMPLES: self.counts,
            **dict.fromkeys((wire.DISPARITY, wire.DISPARITY_HARD), self.disparities),
            **dict(zip((*wire.POSITIVES, *wire.HITS), self.of_groups.T, strict=True)),
            wire.LOSS_BASELINE: self.baselines,
            wire.LEARNING_RATE: self.rates,
            wire.STEP_SUM: np.where(self.updates.any(axis=1), 5.0 * self.rates, 0.0),  # who takes no step does not move
            wire.UPDATE_NORM: np.linalg.norm(self.updates, axis=1),
        }
        return known.get(metric, self.losses)

    def move(self, description: str, change: Callable[[FloatArray], FloatArray]) -> "Situation":
        """Return these clients with other updates, of which the second ones are changed as the first."""
        return replace(self, description=description, updates=change(self.updates), seconds=change(self.seconds))

    def select(self, rows: list[int] | NDArray[np.intp]) -> "Situation":
        """Return what these clients reply, by their places, in this order; they get new names."""
        columns = [each.name for each in fields(self) if each.name not in ("description", "names")]
        chosen = {name: getattr(self, name)[rows] for name in columns}
        return replace(self, names=_names(len(chosen["losses"])), **chosen)


def as_arrays(flat: FloatArray) -> Model:
    """Return a flat vector as the arrays of a model of two layers, one of which has a bias."""
    return dict(zip(ARRAYS, np.array_split(flat, len(ARRAYS)), strict=True))


def unknown_metrics(method: FairStrategy) -> list[str]:
    """Return the metrics that a method needs and Fairbloom's own clients do not report."""
    return sorted({*method.needs} - {*MEASURED})


def _names(m: int) -> tuple[str, ...]:
    return tuple(f"client-{k:04}" for k in range(m))


def ordinary_situation(m: int, seed: int = 0, common: float = 1.0) -> Situation:
    """Return m clients of which no two are alike; `common` says how much their updates have in common."""
    rng = np.random.default_rng([m, seed])
    shared, single = rng.normal(size=m + 3), rng.normal(size=(m, m + 3))
    return Situation(
        description=f"{m} ordinary clients" if m > 1 else "a single client",
        names=_names(m),
        updates=rng.uniform(0.5, 2.0, (m, 1)) * (common * shared + single),
        losses=rng.uniform(0.2, 3.0, m),
        accuracies=rng.uniform(0.1, 0.9, m),
        rates=rng.uniform(0.05, 0.2, m),
        counts=rng.permutation(np.arange(10.0, 10.0 + 7.0 * m, 7.0)),
        draws=np.ones(m),
        seconds=0.3 * rng.normal(size=(m, m + 3)),
        disparities=rng.uniform(-0.5, 0.5, m),
        of_groups=np.hstack([rng.integers(10, 20, (m, 2)), rng.integers(1, 10, (m, 2))]).astype(np.float64),
        baselines=rng.uniform(0.1, 1.0, m),
    )


# The method ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What a method sees of a situation, and the rows that its coefficients combine."""

    cohort: Cohort
    vectors: Vectors
    updates: Updates

    def step(self, coefficients: FloatArray) -> FloatArray:
        """Return the step of these coefficients, shape (d,), by the code of a run; infinite where a run takes none."""
        cohort = self.cohort
        try:
            after = self.updates.model_after(coefficients, self.vectors, cohort.prior, cohort.counts)
        except ValueError:
            return np.full(self.vectors.size, np.inf)
        return -np.concatenate([after[name] for name in self.updates.layout.trainable])  # the model before it is zero


class Weighed(NamedTuple):
    """The coefficients that a method gives the clients of a situation, and the step."""

    coefficients: FloatArray  # shape (k, m): k = 1, the number of arrays, or twice that with second updates
    step: FloatArray  # shape (d,)


@dataclass(frozen=True)
class Subject:
    """A method under test: its class, or another function that makes it, with the values of its parameters."""

    factory: Callable[..., FairStrategy]
    arguments: Mapping[str, Value]

    def create(self, **options: Any) -> FairStrategy:
        """Return a new instance of the method, with its arguments and these common options."""
        with self.explain_errors("When it was made, ", "parameters"):
            method = self.factory(**self.arguments, **options)
        if "progress" not in vars(method):
            raise Failure("Its __init__ does not call super().__init__(**options): call that first.", "parameters")
        return method

    def ask(self, method: FairStrategy, situation: Situation, number: int = 1) -> Asked:
        """Return what the method sees of a situation, made by the code that makes it in a run."""
        names = situation.names
        model = as_arrays(np.zeros(situation.updates.shape[1]))
        trained = Trained.empty(
            method.layout_of(model), len(names), refused=Refusals(number), missing=(), second=method.second
        )
        columns = {metric: situation.column(metric) for metric in method.needs}
        for k, name in enumerate(names):
            report = {wire.NUM_EXAMPLES: situation.counts[k], method.weighted_by_key: situation.counts[k]}
            report |= {metric: column[k] for metric, column in columns.items()}
            trained.add(name, report, as_arrays(-situation.updates[k]), as_arrays(-situation.seconds[k]))
        if "roster" in method.requires:
            known = {**method.progress.roster, ABSENT: 20.0, **dict(zip(names, situation.counts.tolist(), strict=True))}
            method.progress.roster = dict(sorted(known.items()))
        with self.explain_errors(f"Given {situation.description}, ", "shape"):
            cohort, vectors = cohort_of(
                method,
                trained,
                server_round=number,
                num_rounds=ROUNDS,
                online=names,
                draws=dict(zip(names, map(int, situation.draws), strict=True)),
                sent=self._factors_sent(method),
            )
        return Asked(cohort, vectors, trained.updates)

    def _factors_sent(self, method: FairStrategy) -> dict[str, float]:
        """Return what the kept rows that a method sends are multiplied by, by record; raise Failure where it cannot."""
        with self.explain_errors("After a round, ", "memory", method=method):
            sends: object = method.sends()
        if not isinstance(sends, Mapping):
            raise Failure(f"sends returned {sends!r}: it must return {{record: (kept row, factor)}}.", "memory")
        for record, row in sends.items():
            if not (isinstance(row, tuple) and len(row) == 2 and row[0] in method.progress.kept):
                raise Failure(
                    f"sends returned {row!r} for {record!r}: it must be a row of self.progress.kept, as remember "
                    "returned its label, and the factor with which it goes to the clients.",
                    "memory",
                )
        return {record: float(factor) for record, (_, factor) in sends.items()}

    def weigh(self, method: FairStrategy, cohort: Cohort, description: str) -> FloatArray:
        """Return the coefficients of a cohort, by the code that asks for them in a run."""
        with self.explain_errors(f"Given {description}, ", "shape", method=method):
            return compute_coefficients(method, cohort).copy()

    def weigh_fresh(self, situation: Situation, **options: Any) -> Weighed:
        """Return what a new instance makes of a situation; raise Failure where another one gives other coefficients."""
        first, again = (self._weigh_once(situation, **options) for _ in range(2))
        if first.coefficients.tobytes() != again.coefficients.tobytes():
            raise Failure(
                f"Given {situation.description}, the coefficients differ when it is asked again.", "determinism"
            )
        return first

    def _weigh_once(self, situation: Situation, **options: Any) -> Weighed:
        method = self.create(**options)
        asked = self.ask(method, situation)
        c = self.weigh(method, asked.cohort, situation.description)
        m, by_array = asked.cohort.size, np.atleast_2d(c)
        of_updates = [by_array[:, :m], *([by_array[:, m : 2 * m]] if method.has_second_rows else [])]
        return Weighed(np.vstack(of_updates), asked.step(c))

    def iterate_rounds(self, method: FairStrategy, rounds: int) -> Iterator[tuple[Cohort, FloatArray]]:
        """Yield cohort and coefficients of rounds with other clients each; the method remembers each round."""
        six = ordinary_situation(6)
        for number in range(1, rounds + 1):
            places = TAKING_PART[number % len(TAKING_PART)]
            situation = replace(six.select(places), names=tuple(six.names[k] for k in places))
            asked = self.ask(method, situation, number)
            cohort = asked.cohort
            kept = f" and {len(cohort.memory)} kept rows" if cohort.memory else ""
            words = f"{len(places)} ordinary clients{kept} in round {number}"
            coefficients = self.weigh(method, cohort, words)
            yield cohort, coefficients
            rows = self._remember(method, cohort, coefficients, words)
            with self.explain_errors(f"Given {words}, ", "memory", method=method):
                method.progress.kept = rows_after(method, rows, asked.vectors)
            method.progress.finished_rounds = number

    def _remember(
        self, method: FairStrategy, cohort: Cohort, coefficients: FloatArray, words: str
    ) -> Mapping[Kept, FloatArray | None]:
        with self.explain_errors(f"Given {words}, ", "memory", method=method):
            asked = method.probe(cohort, coefficients) is not None
            probed = dict(zip(cohort.names, np.linspace(0.5, 1.5, cohort.size).tolist(), strict=True)) if asked else {}
            rows: object = method.remember(cohort, coefficients, probed)
        if not isinstance(rows, Mapping):
            raise Failure(
                f"remember returned {rows!r}: it must return the rows to keep, by their Kept, and {{}} where it keeps "
                "none.",
                "memory",
            )
        for key, row in rows.items():
            if not isinstance(key, Kept):
                raise Failure(
                    f"remember returned a row under {key!r}: its key must be Kept(key, cohort.round).", "memory"
                )
            if row is not None and (np.shape(row) != (cohort.rows,) or not np.isfinite(row).all()):
                raise Failure(
                    f"Given {words}, remember returned a row for {key.key!r} of shape {np.shape(row)}: a row says how "
                    "much of each update and of each kept row goes into what is kept, so it must be finite numbers of "
                    f"shape {(cohort.rows,)}.",
                    "memory",
                )
        return rows

    def run_rounds(
        self, method: FairStrategy, rounds: int, model: Model | None = None, **settings: Value
    ) -> list[Round]:
        """Return the next rounds of the method with real clients, which learn digits in this process.

        The clients store what they keep between rounds in `state_dir`, if it is given.
        """
        unknown = unknown_metrics(method)
        if unknown:
            raise NotApplicable(
                f"Fairbloom's clients do not report {', '.join(unknown)}, so no round can be run with them."
            )
        method.update_limit = math.inf  # every step is taken, so that it shows where one is too long
        reporters = ("needs", "shape", "memory")
        with self.explain_errors("In rounds with real clients, ", *reporters, method=method):
            finished = run_rounds(LoopClients(method, run_config(method, **settings)), rounds, model)
        refused = sorted({why for each in finished for why in each.refused.values()})
        if refused:
            raise Failure(f"In rounds with real clients, replies were refused: {refused[0]}.", *reporters)
        return finished

    @contextmanager
    def explain_errors(self, given: str, *reporters: str, method: FairStrategy | None = None) -> Iterator[None]:
        """Turn what is raised inside into Failure; REPORTED_BY and then `reporters` say who reports it."""
        try:
            yield
        except Failure:
            raise
        except MethodError as error:
            raise Failure(f"{given}{error}. A run would end there.", "shape") from error
        except Exception as error:
            raised = Raised.of(error, self._files)
            missing = error.metric if isinstance(error, UnneededMetricError) else ""
            if method and missing:
                raise Failure(
                    f"{raised.function} reads the metric {missing!r} (`{raised.line}`), which `needs` does not ask "
                    f"for: write needs = {{{', '.join(map(repr, sorted({*method.needs, missing})))}}}.",
                    "needs",
                ) from error
            if not raised.function:
                raise Failure(f"{given}{raised.words}", *reporters) from error
            reported_by = REPORTED_BY.get(raised.function)
            words = f"{given}{raised.words} A run would end there."
            raise Failure(words, *([reported_by] if reported_by else reporters)) from error

    @property
    def _files(self) -> set[str]:
        """The files in which the method is written, without those of FairStrategy."""
        classes = [cls for cls in getattr(self.factory, "__mro__", ()) if cls not in FairStrategy.__mro__]
        return {str(getattr(sys.modules.get(cls.__module__), "__file__", "")) for cls in classes}


# Rounds with real clients -------------------------------------------------------------------------------------------


def run_config(method: Method, **settings: Value) -> Mapping[str, Value]:
    """Return the run config of six clients that take one step in a round; `settings` differ from it."""
    task = EVEN if method.compares_groups else "digits"
    small: dict[str, Value] = {"task": task, "clients": 6, "device": "cpu", "batch-size": 0, "learning-rate": 0.5}
    return Settings.of(small | {name.replace("_", "-"): value for name, value in settings.items()}).run_config()


def run_rounds(clients: LoopClients, rounds: int, model: Model | None) -> list[Round]:
    """Return the next rounds of these clients' method; what they keep is stored at the end, if they have a folder."""
    method = clients.method
    first = initial_model(method) if model is None else model
    loop = Rounds(method, clients, ROUNDS).run(first, measure=lambda number: (), measure_after=())
    finished = list(islice(loop, rounds))
    clients.keep(since=method.progress.finished_rounds)
    return finished


def initial_model(method: Method) -> Model:
    """Return the model that the clients of a method begin with."""
    state = load_task(run_config(method)).model().state_dict()
    return {name: tensor.detach().numpy().copy() for name, tensor in state.items()}


# Surroundings -------------------------------------------------------------------------------------------------------


@contextmanager
def silence() -> Iterator[None]:
    """Keep the log and warnings silent, and let a single thread compute, for a while."""
    log, threads = logging.getLogger("flwr"), torch.get_num_threads()
    level = log.level
    log.setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        log.setLevel(level)

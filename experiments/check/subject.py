"""A method under test: it is asked in made-up cohorts and in real rounds, and its errors are explained."""

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from fairbloom.client.metrics import OF_TRAINING, WORK_METRICS
from fairbloom.protocol import names as wire
from fairbloom.protocol.settings import Value
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.aggregation import cohort_of, compute_coefficients, rows_after
from fairbloom.rounds.clients import Trained
from fairbloom.rounds.cohort import Cohort, Kept
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Method
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.round import Round
from fairbloom.rounds.updates import FloatArray, Model, Updates, Vectors
from fairbloom.server.checkpoint import load_checkpoint, save_checkpoint
from fairbloom.server.settings import Settings
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FairStrategy
from fairbloom.tasks import load_task

from .replies import Replies, ordinary_replies
from .report import Failure, NotApplicable, explain_errors

ROUNDS = 50
"""T, the rounds of the run that a method under test believes to be in."""

TAKING_PART = ([3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2], [1, 2], [0, 3, 4, 5])
"""The clients, of six, that take part in rounds that follow each other."""

MEASURED = (
    *(each.pattern.format(score) for each in OF_TRAINING for score in (wire.LOSS, wire.ACCURACY)),
    *(*WORK_METRICS, *sorted(wire.BETWEEN_GROUPS), wire.NUM_EXAMPLES),
)
"""What Fairbloom's own clients report of their training, of every task of classes, where a method asks for it."""

EVEN = "fairbloom.experiments.check.even:task"
"""The task of real clients whose examples are in two groups."""

ABSENT = "client-absent"
"""A client that the server knows, and that takes part in no made-up round."""

ARRAYS = ("first.weight", "first.bias", "second.weight")
"""The arrays of the model in made-up cohorts."""


class Seen(NamedTuple):
    """What a method sees of replies, and the rows that its coefficients combine."""

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


@dataclass(frozen=True)
class MethodUnderTest:
    """A method's class, or another function that makes it, with the values of its parameters."""

    factory: Callable[..., FairStrategy]
    arguments: Mapping[str, Value]

    def create(self, **options: Any) -> FairStrategy:
        """Return a new instance of the method, with its arguments and these common options."""
        with self.explain_errors("When it was made, "):
            method = self.factory(**self.arguments, **options)
        if "progress" not in vars(method):
            raise Failure("Its __init__ does not call super().__init__(**options): call that first.")
        return method

    def show(
        self, method: FairStrategy, replies: Replies, number: int = 1, names: tuple[str, ...] | None = None
    ) -> Seen:
        """Return what the method sees of replies, made by the code that makes it in a run."""
        names = replies.names if names is None else names
        model = as_arrays(np.zeros(replies.updates.shape[1]))
        layout = method.layout_of(model)
        trained = Trained.empty(layout, refused=Refusals(number), second=method.second)
        columns = {metric: replies.column(metric) for metric in method.needs}
        for k, name in enumerate(names):
            report = {wire.NUM_EXAMPLES: replies.counts[k], method.weighted_by_key: replies.counts[k]}
            report |= {metric: column[k] for metric, column in columns.items()}
            trained.add(name, report, as_arrays(-replies.updates[k]), as_arrays(-replies.seconds[k]))
        trained.screen()
        if "roster" in method.requires:
            known = {**method.progress.roster, ABSENT: 20.0, **dict(zip(names, replies.counts.tolist(), strict=True))}
            method.progress.roster = dict(sorted(known.items()))
        with self.explain_errors(f"Given {replies.description}, "):
            cohort, vectors = cohort_of(
                method,
                trained,
                server_round=number,
                num_rounds=ROUNDS,
                online=names,
                draws=dict(zip(names, map(int, replies.draws), strict=True)),
                sent=self._factors_sent(method),
            )
        return Seen(cohort, vectors, trained.updates)

    def _factors_sent(self, method: FairStrategy) -> dict[str, float]:
        """Return the factors of the kept rows that a method sends, by record."""
        with self.explain_errors("After a round, "):
            sends = method.sends()
            if unknown := [row for row, _ in sends.values() if row not in method.progress.kept]:
                raise Failure(
                    f"sends returned {sends!r}, and no row is kept as {unknown[0]}: it must return {{record: (row of "
                    "self.progress.kept, factor)}."
                )
            return {record: float(factor) for record, (_, factor) in sends.items()}

    def weigh(self, method: FairStrategy, cohort: Cohort, description: str) -> FloatArray:
        """Return the coefficients of a cohort, by the code that asks for them in a run."""
        with self.explain_errors(f"Given {description}, "):
            return compute_coefficients(method, cohort).copy()

    def weigh_fresh(self, replies: Replies, **options: Any) -> tuple[FloatArray, FloatArray]:
        """Return the coefficients that a new instance gives to replies, and the step.

        The coefficients have shape (k, m): k is 1, the number of arrays, or twice that with second updates.
        """
        method = self.create(**options)
        seen = self.show(method, replies)
        c = self.weigh(method, seen.cohort, replies.description)
        m, by_array = seen.cohort.size, np.atleast_2d(c)
        second = [by_array[:, m : 2 * m]] if method.has_second_rows else []
        return np.vstack([by_array[:, :m], *second]), seen.step(c)

    def iterate_rounds(self, method: FairStrategy, rounds: int) -> Iterator[tuple[Cohort, FloatArray]]:
        """Yield cohort and coefficients of rounds with other clients each; the method remembers each round."""
        six = ordinary_replies(6)
        for number in range(1, rounds + 1):
            places = TAKING_PART[number % len(TAKING_PART)]
            seen = self.show(method, six.select(places), number, tuple(six.names[k] for k in places))
            cohort = seen.cohort
            kept = f" and {len(cohort.memory)} kept rows" if cohort.memory else ""
            description = f"{cohort.size} ordinary clients{kept} in round {number}"
            coefficients = self.weigh(method, cohort, description)
            yield cohort, coefficients
            with self.explain_errors(f"Given {description}, "):
                rows = self._remember(method, cohort, coefficients)
                method.progress.kept = rows_after(method, rows, seen.vectors)
            method.progress.finished_rounds = number

    def _remember(
        self, method: FairStrategy, cohort: Cohort, coefficients: FloatArray
    ) -> Mapping[Kept, FloatArray | None]:
        asked = method.probe(cohort, coefficients) is not None
        probed = dict(zip(cohort.names, np.linspace(0.5, 1.5, cohort.size).tolist(), strict=True)) if asked else {}
        rows = method.remember(cohort, coefficients, probed)
        right = isinstance(rows, Mapping) and all(
            isinstance(key, Kept) and (row is None or (np.shape(row) == (cohort.rows,) and np.isfinite(row).all()))
            for key, row in rows.items()
        )
        if not right:
            raise Failure(
                f"remember returned {rows!r}: it must return {{Kept(key, cohort.round): row}}, where a row has one "
                f"finite number for each update and kept row, shape {(cohort.rows,)}, and {{}} to keep none."
            )
        return rows

    def run_rounds(
        self, method: FairStrategy, rounds: int, model: Model | None = None, **settings: Value
    ) -> list[Round]:
        """Return the next rounds of the method with real clients, which learn digits in this process.

        The clients store what they keep between rounds in `state_dir`, if it is given.
        """
        if unknown := unknown_metrics(method):
            words = f"Fairbloom's clients do not report {', '.join(unknown)}, so no round can be run with them."
            raise NotApplicable(words)
        method.update_limit = math.inf  # every step is taken, so that it shows where one is too long
        with self.explain_errors("In rounds with real clients, "):
            finished = run_rounds(method, rounds, model, **settings)
        if refused := sorted({why for each in finished for why in each.refused.values()}):
            raise Failure(f"In rounds with real clients, replies were refused: {refused[0]}.")
        return finished

    def explain_errors(self, given: str) -> AbstractContextManager[None]:
        """Turn what is raised inside into Failure; `given` begins the message."""
        classes = [cls for cls in getattr(self.factory, "__mro__", ()) if cls not in FairStrategy.__mro__]
        files = {str(getattr(sys.modules.get(cls.__module__), "__file__", "")) for cls in classes}
        return explain_errors(given, "A run would end there.", files)


def as_arrays(flat: FloatArray) -> Model:
    """Return a flat vector as the arrays of a model of two layers, one of which has a bias."""
    return dict(zip(ARRAYS, np.array_split(flat, len(ARRAYS)), strict=True))


def unknown_metrics(method: FairStrategy) -> list[str]:
    """Return the metrics that a method needs and Fairbloom's own clients do not report."""
    return sorted({*method.needs} - {*MEASURED})


# Rounds with real clients -------------------------------------------------------------------------------------------


def run_config(method: Method, **settings: Value) -> Mapping[str, Value]:
    """Return the run config of six clients that take one step in a round; `settings` differ from it."""
    task = EVEN if method.compares_groups else "digits"
    small: dict[str, Value] = {"task": task, "clients": 6, "device": "cpu", "batch-size": 0, "learning-rate": 0.5}
    return Settings.of(small | {name.replace("_", "-"): value for name, value in settings.items()}).run_config()


def run_rounds(method: Method, rounds: int, model: Model | None = None, **settings: Value) -> list[Round]:
    """Return the next rounds of a method; what clients keep is stored at the end, if they have a folder."""
    clients = LoopClients(method, run_config(method, **settings))
    first = initial_model(method) if model is None else model
    loop = Rounds(method, clients, ROUNDS).run(first, measure=lambda number: (), measure_after=())
    finished = list(islice(loop, rounds))
    clients.keep(since=method.progress.finished_rounds)
    return finished


def initial_model(method: Method) -> Model:
    """Return the model that the clients of a method begin with."""
    state = load_task(run_config(method)).model().state_dict()
    return {name: tensor.detach().numpy().copy() for name, tensor in state.items()}


def client_losses(method: Method, model: Model) -> FloatArray:
    """Return each client's loss of a model on its test set."""
    clients = LoopClients(method, run_config(method))
    replies = clients.evaluate(clients.online(1), model, Terms(server_round=1), ())
    return np.array([report[wire.LOSS] for report in replies.metrics.values()])


def differs_when_stopped(
    create: Callable[[], FairStrategy], run: Callable[..., list[Round]], rounds: Sequence[Round]
) -> int:
    """Return the first of these rounds that differs in a run that is stopped after half of them; 0 for none.

    `run` gets a method, the number of rounds, the model before them and the folder of what clients keep.
    """
    half = len(rounds) // 2
    stopped, continued = create(), create()
    with TemporaryDirectory() as folder:
        before = run(stopped, half, None, state_dir=folder)
        file = Path(folder) / "checkpoint.safetensors"
        save_checkpoint(file, before[-1].arrays, stopped.state_dict())
        model, state = load_checkpoint(file)
        continued.load_state_dict(state)
        after = run(continued, len(rounds) - half, model, state_dir=folder)
    pairs = zip(rounds, [*before, *after], strict=True)
    return next((one.number for one, other in pairs if round_bits(one) != round_bits(other)), 0)


def round_bits(finished: Round) -> object:
    """Return what is equal of two rounds that are the same to the bit."""
    arrays = {name: (array.shape, array.tobytes()) for name, array in finished.arrays.items()}
    return finished.participants, dict(finished.coefficients), arrays


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

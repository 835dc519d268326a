"""Made-up replies of the clients of one round, and what methods make of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.metrics import OF_TRAINING
from fairbloom.protocol import names as wire
from fairbloom.rounds.aggregation import Weighting, build_cohort, decide, remember
from fairbloom.rounds.arrays import FloatArray, Model
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.cohort import Cohort
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors
from fairbloom.strategies import FairStrategy

# Metrics that have the values of another one here.
SAME = {each.pattern.format(wire.ACCURACY): wire.ACCURACY for each in OF_TRAINING} | {
    wire.DISPARITY_HARD: wire.DISPARITY
}


@dataclass(frozen=True)
class MadeUpReplies:
    """The replies of m clients; arrays have a row for each."""

    description: str  # for example "3 clients that did not move"
    names: tuple[str, ...]
    updates: FloatArray  # shape (m, d)
    seconds: FloatArray  # the second updates, of methods that ask for two; shape (m, d)
    metrics: Mapping[str, FloatArray]
    draws: FloatArray

    def column(self, metric: str) -> FloatArray:
        """Return what the clients report under a metric's name.

        The loss stands for an unknown one.
        """
        match SAME.get(metric, metric):
            case wire.UPDATE_NORM:
                return np.asarray(np.linalg.norm(self.updates, axis=1))
            case wire.STEP_SUM:  # no step, no update
                return np.where(
                    self.updates.any(axis=1), 5.0 * self.metrics[wire.LEARNING_RATE], 0.0
                )
            case name:
                return self.metrics.get(name, self.metrics[wire.LOSS])

    def report(self, metrics: Mapping[str, FloatArray], description: str) -> "MadeUpReplies":
        """Return these replies with other values of metrics."""
        return replace(self, description=description, metrics={**self.metrics, **metrics})

    def move(self, change: Callable[[FloatArray], FloatArray], description: str) -> "MadeUpReplies":
        """Return these replies with other updates; the second ones change in the same way."""
        return replace(
            self,
            description=description,
            updates=change(self.updates),
            seconds=change(self.seconds),
        )

    def select(self, rows: list[int] | NDArray[np.intp]) -> "MadeUpReplies":
        """Return the replies in these rows, in this order."""
        return MadeUpReplies(
            self.description,
            tuple(self.names[k] for k in rows),
            self.updates[rows],
            self.seconds[rows],
            {metric: values[rows] for metric, values in self.metrics.items()},
            self.draws[rows],
        )


def ordinary_replies(m: int, seed: int = 0, common: float = 1.0) -> MadeUpReplies:
    """Return m different replies; `common` is the size of what their updates have in common."""
    rng = np.random.default_rng([m, seed])
    shared = rng.normal(size=m + 3)
    updates = rng.uniform(0.5, 2.0, (m, 1)) * (common * shared + rng.normal(size=(m, m + 3)))
    metrics = {
        wire.LOSS: rng.uniform(0.2, 3.0, m),
        wire.ACCURACY: rng.uniform(0.1, 0.9, m),
        wire.LEARNING_RATE: rng.uniform(0.05, 0.2, m),
        wire.NUM_EXAMPLES: rng.permutation(np.arange(10.0, 10.0 + 7.0 * m, 7.0)),
    }
    seconds = 0.3 * rng.normal(size=(m, m + 3))
    metrics[wire.DISPARITY] = rng.uniform(-0.5, 0.5, m)
    groups = np.hstack([rng.integers(10, 20, (m, 2)), rng.integers(1, 10, (m, 2))]).astype(
        np.float64
    )
    metrics |= dict(zip((*wire.POSITIVES, *wire.HITS), groups.T, strict=True))
    metrics[wire.LOSS_BASELINE] = rng.uniform(0.1, 1.0, m)
    return MadeUpReplies(
        f"{m} ordinary clients",
        tuple(f"client-{k:04}" for k in range(m)),
        updates,
        seconds,
        metrics,
        np.ones(m),
    )


def report_in_pairs(replies: MadeUpReplies) -> MadeUpReplies:
    """Return replies in which every two neighbours report the same metrics: ties."""
    first = np.arange(len(replies.names)) // 2 * 2
    return replies.report(
        {metric: values[first] for metric, values in replies.metrics.items()},
        f"{replies.description}, of which every two report the same",
    )


def extreme_replies() -> Iterator[MadeUpReplies]:
    """Yield the extremes that a run may come to."""
    usual = ordinary_replies(4)
    loss = usual.metrics[wire.LOSS]
    groups = usual.metrics.keys() & {wire.POSITIVES[1], wire.HITS[1]}
    still = np.array([1.0, 0.0, 1.0, 1.0])
    first = np.arange(usual.updates.shape[1]) < 3  # of three arrays
    one_array = first & (still[:, None] == 0.0)
    moves: dict[str, Callable[[FloatArray], FloatArray]] = {
        "that did not move (zero updates)": lambda U: 0.0 * U,
        "of which one did not move (a zero update)": lambda U: still[:, None] * U,
        "that did not move one of the arrays": lambda U: np.where(first, 0.0, U),
        "of which one did not move an array": lambda U: np.where(one_array, 0.0, U),
        "with the same update": lambda U: np.tile(U[0], (4, 1)),
        "with opposed updates": lambda U: np.outer([1.0, -1.0, 1.0, -1.0], U[0]),
        "with orthogonal updates": lambda U: np.eye(*U.shape),
    }
    reports = {
        "with equal losses": {wire.LOSS: np.ones(4)},
        "with zero losses": {wire.LOSS: np.zeros(4)},
        "of which one has a zero loss": {wire.LOSS: still * loss},
        "with losses below zero, as that of a density may be": {wire.LOSS: -loss},
        "with accuracy 0": {wire.ACCURACY: np.zeros(4)},
        "with accuracy 1": {wire.ACCURACY: np.ones(4)},
        "that are as well served on their own": {wire.LOSS_BASELINE: loss},
        "without a disparity between groups": {wire.DISPARITY: np.zeros(4)},
        "without positive examples in one of two groups": {
            name: 0.0 * usual.metrics[name] for name in groups
        },
        "of which one has no positive examples in a group": {
            name: still * usual.metrics[name] for name in groups
        },
        "with 1 to 1,000,000 examples": {wire.NUM_EXAMPLES: np.array([1.0, 10.0, 1e3, 1e6])},
    }
    for scale in (1e-12, 1e12):
        one_off = np.array([1.0, scale, 1.0, 1.0])[:, None]
        reports[f"with losses around {scale:.0e}"] = {wire.LOSS: scale * loss}
        moves[f"with updates around {scale:.0e}"] = partial(np.multiply, scale)
        moves[f"of which one has an update around {scale:.0e}"] = partial(np.multiply, one_off)
    yield from (usual.move(change, f"4 clients {words}") for words, change in moves.items())
    yield from (usual.report(metrics, f"4 clients {words}") for words, metrics in reports.items())
    yield replace(
        usual,
        draws=np.array([1.0, 3.0, 1.0, 1.0]),
        description="4 clients of which one was drawn 3 times",
    )
    yield (
        ordinary_replies(1)
        .move(lambda U: 0.0 * U, "")
        .report({wire.LOSS: np.zeros(1)}, "a single client that did not move, with loss 0")
    )


# T, the rounds of the run that a method believes to be in.
ROUNDS = 50

# The clients, of six, that take part in rounds that follow each other.
TAKING_PART = ([3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2], [1, 2], [0, 3, 4, 5])

# A client that the server knows, and that takes part in no made-up round.
ABSENT = "client-absent"

# The arrays of the model in made-up cohorts.
ARRAYS = ("first.weight", "first.bias", "second.weight")


class Seen(NamedTuple):
    """What a method sees of replies, and the rows that its coefficients combine."""

    cohort: Cohort
    vectors: Vectors
    updates: Updates

    def step(self, coefficients: FloatArray) -> FloatArray:
        """Return the step of these coefficients, shape (d,), by the code of a run."""
        after = self.updates.model_after(
            coefficients, self.vectors, self.cohort.prior, self.cohort.counts
        )
        # the model before it is zero
        return -np.concatenate([after[name] for name in self.updates.layout.trainable])


def show(method: FairStrategy, replies: MadeUpReplies, number: int = 1) -> Seen:
    """Return what the method sees of replies, made by the code that makes it in a run."""
    names = replies.names
    counts = replies.column(wire.NUM_EXAMPLES)
    trained = TrainReplies.empty(
        method.layout_of(as_arrays(np.zeros(replies.updates.shape[1]))),
        refused=Refusals(number),
        second=method.second,
    )
    columns = {metric: replies.column(metric) for metric in method.needs}
    columns |= {wire.NUM_EXAMPLES: counts, method.weighted_by_key: counts}
    for k, name in enumerate(names):
        trained.add(
            name,
            {metric: column[k] for metric, column in columns.items()},
            as_arrays(-replies.updates[k]),
            as_arrays(-replies.seconds[k]),
        )
    trained.screen()
    if "roster" in method.requires:
        known = {ABSENT: 20.0, **dict(zip(names, counts.tolist(), strict=True))}
        method.enter(method.run_state.drawn(known))
    cohort, vectors = build_cohort(
        method,
        trained,
        server_round=number,
        num_rounds=ROUNDS,
        online=names,
        draws=dict(zip(names, map(int, replies.draws), strict=True)),
        sent={record: float(factor) for record, (_, factor) in method.sends().items()},
    )
    for array in (cohort.counts, cohort.prior, cohort.draws, *cohort.metrics.values()):
        array.flags.writeable = False  # the step and the records read them after weigh
    return Seen(cohort, vectors, trained.updates)


def weigh(method: FairStrategy, replies: MadeUpReplies) -> tuple[FloatArray, FloatArray]:
    """Return the coefficients that a new method gives to replies, and the step.

    The coefficients have shape (k, m): k is 1, the number of arrays, or twice that with second
    updates.
    """
    seen = show(method, replies)
    c = decide(method, seen.cohort).coefficients.copy()
    m = seen.cohort.size
    by_array = np.atleast_2d(c)
    second = [by_array[:, m : 2 * m]] if method.has_second_rows else []
    return np.vstack([by_array[:, :m], *second]), seen.step(c)


def iterate_rounds(method: FairStrategy, rounds: int) -> Iterator[Cohort]:
    """Yield the cohorts of rounds with other clients each; the method remembers each round."""
    for number in range(1, rounds + 1):
        taking_part = TAKING_PART[number % len(TAKING_PART)]
        seen = show(method, ordinary_replies(6).select(taking_part), number)
        cohort = seen.cohort
        decision = decide(method, cohort)
        yield cohort
        asked = method.probe(cohort, decision.coefficients) is not None
        losses = np.linspace(0.5, 1.5, cohort.size).tolist() if asked else ()
        memory, rows = remember(
            method,
            Weighting(decision.coefficients, decision, cohort),
            seen.vectors,
            dict(zip(cohort.names, losses, strict=False)),
        )
        method.enter(method.run_state.stepped(number, memory, rows, None, method.run_state.norms))


def as_arrays(flat: FloatArray) -> Model:
    """Return a flat vector as the arrays of a model of two layers, one of which has a bias."""
    return dict(zip(ARRAYS, np.array_split(flat, len(ARRAYS)), strict=True))

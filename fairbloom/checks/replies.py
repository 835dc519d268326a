"""Made-up replies of the clients of one round."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.metrics import OF_TRAINING
from fairbloom.protocol import names as wire
from fairbloom.rounds.arrays import FloatArray
from fairbloom.text import plural

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
        plural(m, "a single client", f"{m} ordinary clients"),
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
    yield usual.move(lambda U: 0.0 * U, "4 clients that did not move (zero updates)")
    yield usual.move(
        lambda U: still[:, None] * U, "4 clients of which one did not move (a zero update)"
    )
    yield usual.move(
        lambda U: np.where(first, 0.0, U), "4 clients that did not move one of the arrays"
    )
    yield usual.move(
        lambda U: np.where(one_array, 0.0, U), "4 clients of which one did not move an array"
    )
    yield usual.move(lambda U: np.tile(U[0], (4, 1)), "4 clients with the same update")
    yield usual.move(
        lambda U: np.outer([1.0, -1.0, 1.0, -1.0], U[0]), "4 clients with opposed updates"
    )
    yield usual.move(lambda U: np.eye(*U.shape), "4 clients with orthogonal updates")
    yield usual.report({wire.LOSS: np.ones(4)}, "4 clients with equal losses")
    yield usual.report({wire.LOSS: np.zeros(4)}, "4 clients with zero losses")
    yield usual.report({wire.LOSS: still * loss}, "4 clients of which one has a zero loss")
    yield usual.report(
        {wire.LOSS: -loss}, "4 clients with losses below zero, as that of a density may be"
    )
    for scale in (1e-12, 1e12):
        one_off = np.array([1.0, scale, 1.0, 1.0])[:, None]
        yield usual.report({wire.LOSS: scale * loss}, f"4 clients with losses around {scale:.0e}")
        yield usual.move(partial(np.multiply, scale), f"4 clients with updates around {scale:.0e}")
        yield usual.move(
            partial(np.multiply, one_off),
            f"4 clients of which one has an update around {scale:.0e}",
        )
    yield from (
        usual.report({wire.ACCURACY: np.full(4, each)}, f"4 clients with accuracy {each:g}")
        for each in (0.0, 1.0)
    )
    yield usual.report({wire.LOSS_BASELINE: loss}, "4 clients that are as well served on their own")
    yield usual.report(
        {wire.DISPARITY: np.zeros(4)}, "4 clients without a disparity between groups"
    )
    none, some = ({name: by * usual.metrics[name] for name in groups} for by in (0.0, still))
    yield usual.report(none, "4 clients without positive examples in one of two groups")
    yield usual.report(some, "4 clients of which one has no positive examples in a group")
    yield usual.report(
        {wire.NUM_EXAMPLES: np.array([1.0, 10.0, 1e3, 1e6])},
        "4 clients with 1 to 1,000,000 examples",
    )
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

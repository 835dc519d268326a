"""Made-up replies of the clients of one round."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairbloom.client.metrics import OF_TRAINING
from fairbloom.protocol import names as wire
from fairbloom.rounds.updates import FloatArray


@dataclass(frozen=True, kw_only=True)
class Replies:
    """The replies of m clients; arrays have a row for each."""

    description: str  # for example "3 clients that did not move"
    updates: FloatArray  # shape (m, d)
    seconds: FloatArray  # the second updates, of methods that ask for two; shape (m, d)
    losses: FloatArray
    baselines: FloatArray  # losses of models that clients have trained alone
    accuracies: FloatArray
    rates: FloatArray  # learning rates
    disparities: FloatArray
    group_counts: FloatArray  # positive examples of two groups, and those of them that are found; shape (m, 4)
    counts: FloatArray  # training examples
    draws: FloatArray

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names, ascending."""
        return tuple(f"client-{k:04}" for k in range(len(self.losses)))

    def column(self, metric: str) -> FloatArray:
        """Return what the clients report under a metric's name; the loss stands for an unknown one."""
        known: dict[str, FloatArray] = {
            **{each.pattern.format(wire.ACCURACY): self.accuracies for each in OF_TRAINING},
            wire.NUM_EXAMPLES: self.counts,
            **dict.fromkeys((wire.DISPARITY, wire.DISPARITY_HARD), self.disparities),
            **dict(zip((*wire.POSITIVES, *wire.HITS), self.group_counts.T, strict=True)),
            wire.LOSS_BASELINE: self.baselines,
            wire.LEARNING_RATE: self.rates,
            wire.STEP_SUM: np.where(self.updates.any(axis=1), 5.0 * self.rates, 0.0),  # no step, no update
            wire.UPDATE_NORM: np.linalg.norm(self.updates, axis=1),
        }
        return known.get(metric, self.losses)

    def move(self, description: str, change: Callable[[FloatArray], FloatArray]) -> "Replies":
        """Return these replies with other updates; the second ones change in the same way."""
        return replace(self, description=description, updates=change(self.updates), seconds=change(self.seconds))

    def select(self, rows: list[int] | NDArray[np.intp]) -> "Replies":
        """Return the replies in these rows, in this order, of clients with new names."""
        arrays = [each.name for each in fields(self) if each.name != "description"]
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})


def ordinary_replies(m: int, seed: int = 0, common: float = 1.0) -> Replies:
    """Return m different replies; `common` is the size of what their updates have in common."""
    rng = np.random.default_rng([m, seed])
    shared, single = rng.normal(size=m + 3), rng.normal(size=(m, m + 3))
    return Replies(
        description=f"{m} ordinary clients" if m > 1 else "a single client",
        updates=rng.uniform(0.5, 2.0, (m, 1)) * (common * shared + single),
        losses=rng.uniform(0.2, 3.0, m),
        accuracies=rng.uniform(0.1, 0.9, m),
        rates=rng.uniform(0.05, 0.2, m),
        counts=rng.permutation(np.arange(10.0, 10.0 + 7.0 * m, 7.0)),
        draws=np.ones(m),
        seconds=0.3 * rng.normal(size=(m, m + 3)),
        disparities=rng.uniform(-0.5, 0.5, m),
        group_counts=np.hstack([rng.integers(10, 20, (m, 2)), rng.integers(1, 10, (m, 2))]).astype(np.float64),
        baselines=rng.uniform(0.1, 1.0, m),
    )


def extreme_replies() -> Iterator[Replies]:
    """Yield the extremes that a run may come to."""
    usual, one = ordinary_replies(4), ordinary_replies(1)
    losses, groups = usual.losses, usual.group_counts
    still, first = np.array([1.0, 0.0, 1.0, 1.0]), np.arange(usual.updates.shape[1]) < 3  # of three arrays
    yield usual.move("4 clients that did not move (zero updates)", lambda U: 0.0 * U)
    yield usual.move("4 clients of which one did not move (a zero update)", lambda U: still[:, None] * U)
    yield usual.move("4 clients that did not move one of the arrays", lambda U: np.where(first, 0.0, U))
    one_array = first & (still[:, None] == 0.0)
    yield usual.move("4 clients of which one did not move an array", lambda U: np.where(one_array, 0.0, U))
    yield usual.move("4 clients with the same update", lambda U: np.tile(U[0], (4, 1)))
    yield usual.move("4 clients with opposed updates", lambda U: np.outer([1.0, -1.0, 1.0, -1.0], U[0]))
    yield usual.move("4 clients with orthogonal updates", lambda U: np.eye(*U.shape))
    yield replace(usual, description="4 clients with equal losses", losses=np.ones(4))
    yield replace(usual, description="4 clients with zero losses", losses=np.zeros(4))
    yield replace(usual, description="4 clients of which one has a zero loss", losses=still * losses)
    yield replace(usual, description="4 clients with losses below zero, as that of a density may be", losses=-losses)
    for scale in (1e-12, 1e12):
        yield replace(usual, description=f"4 clients with losses around {scale:.0e}", losses=scale * losses)
        one_off = np.array([1.0, scale, 1.0, 1.0])[:, None]
        yield usual.move(f"4 clients with updates around {scale:.0e}", partial(np.multiply, scale))
        yield usual.move(f"4 clients of which one has an update around {scale:.0e}", partial(np.multiply, one_off))
    for accuracy in (0.0, 1.0):
        yield replace(usual, description=f"4 clients with accuracy {accuracy:g}", accuracies=np.full(4, accuracy))
    yield replace(usual, description="4 clients that are as well served alone", baselines=losses)
    yield replace(usual, description="4 clients without a disparity between groups", disparities=np.zeros(4))
    none = groups * np.array([[1.0, 0.0, 1.0, 0.0]])
    yield replace(usual, description="4 clients without positive examples in one of two groups", group_counts=none)
    some = np.where(still[:, None] > 0.0, groups, none)
    yield replace(usual, description="4 clients of which one has no positive examples in a group", group_counts=some)
    yield replace(usual, description="4 clients with 1 to 1,000,000 examples", counts=np.array([1.0, 10.0, 1e3, 1e6]))
    yield replace(usual, description="4 clients of which one was drawn 3 times", draws=np.array([1.0, 3.0, 1.0, 1.0]))
    alone = one.move("a single client that did not move, with loss 0", lambda U: 0.0 * U)
    yield replace(alone, losses=np.zeros(1))

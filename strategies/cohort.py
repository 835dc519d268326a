"""What a method sees of a round: small arrays, one entry a client, never a length-d vector."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Kept:
    """A row of a method's memory: whose it is and the round in which it was an update."""

    key: str
    round: int


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The usable replies of one round, in the order of client names.

    Attributes
    ----------
    round
        t, the server round, from 1.
    num_rounds
        T, the rounds of the whole run; None where the strategy was not started by its own `start`.
    names
        Client names in ascending order, m of them.
    counts
        n_k, the training examples of each client, shape (m,).
    prior
        p_k, the aggregation prior within the round, shape (m,), summing to 1.
    draws
        How often each client was drawn, shape (m,); 1 for all where clients are drawn without replacement.
    metrics
        The metrics that the method needs, by their name on the wire, each of shape (m,).
    memory
        The rows that the method kept, r of them.
    gram_of
        Computes the Gram matrix of the m updates followed by the r kept rows.
    squared_norms_of
        Computes the squared norms of the m updates alone.
    """

    round: int
    names: tuple[str, ...]
    counts: FloatArray
    prior: FloatArray
    draws: FloatArray
    gram_of: Callable[[], FloatArray]
    squared_norms_of: Callable[[], FloatArray]
    num_rounds: int | None = None
    metrics: Mapping[str, FloatArray] = field(default_factory=dict)
    memory: tuple[Kept, ...] = ()

    @property
    def size(self) -> int:
        """m, the number of usable replies."""
        return len(self.names)

    @cached_property
    def gram(self) -> FloatArray:
        """G, the inner products of updates and kept rows, shape (m + r, m + r); computed when first asked for."""
        return self.gram_of()

    @cached_property
    def squared_norms(self) -> FloatArray:
        """‖u_k‖², shape (m,); cheaper than the Gram matrix where a method needs no more."""
        return self.squared_norms_of()

    @property
    def losses(self) -> FloatArray:
        """F_k, the loss of the received model on each client's whole training set, shape (m,)."""
        return self.metrics["loss-before"]


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """Return the stream for one purpose at one place (round, client, …), whatever ran before it."""
    return np.random.default_rng([seed, *repr((purpose, *where)).encode()])

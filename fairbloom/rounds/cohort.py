"""What a method sees of a round: the usable replies as small arrays, and its kept rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import LOSS_BEFORE

from .arrays import FloatArray

# Methods clip larger coefficients, which follow from losses or learning rates near 0: no model can
# take such a step.
LARGEST_COEFFICIENT = 1e150

# Losses at the probe's model, by client name.
Probed = Mapping[str, float]


@dataclass(frozen=True)
class Kept:
    """The label of a row that a method kept: a key, such as a client's name, and a round.

    The round is the one in which the row was an update.
    """

    key: str
    round: int


@dataclass(frozen=True)
class Past:
    """What a method knows of the rounds before this one; nothing of it may be changed in place.

    Attributes
    ----------
    memory
        The memory of its last `Decision`.
    kept
        The labels of all rows that it keeps.
    declared_roster
        The value of `roster`; None if the method does not require it.
    """

    memory: Mapping[str, Any] = field(default_factory=dict)
    kept: tuple[Kept, ...] = ()
    declared_roster: Mapping[str, float] | None = None

    @property
    def roster(self) -> Mapping[str, float]:
        """n_k of every training client known so far, online or not, by name in ascending order.

        Each number is the first that the server knew, and 0 if it knows none yet.

        Raises
        ------
        MethodError
            If "roster" is not in `Method.requires`.
        """
        if self.declared_roster is None:
            raise MethodError(
                "the method reads cohort.roster, which it does not require: write requires = "
                'frozenset({"roster"}) in the class'
            )
        return self.declared_roster


@dataclass(frozen=True)
class Decision:
    """What a method decides on a round.

    Attributes
    ----------
    coefficients
        c: one number per update, then one per kept row, shape (m + r,); or a row for each array.
    memory
        What it remembers of this round: str, numbers, None, arrays, lists and dicts only. None: its
        memory stays as it is.
    keep
        The rows to keep, each as a combination of shape (m + r,), or None for a kept row that stays
        unchanged, even if this round did not recall it. All others are dropped.
    """

    coefficients: FloatArray
    memory: Mapping[str, Any] | None = None
    keep: Mapping[Kept, FloatArray | None] = field(default_factory=dict)


class MethodError(FairbloomError):
    """A method returns impossible coefficients, or reads something that it has not declared."""


class Needed(dict[str, FloatArray]):
    """The metrics that a method needs, by their name on the wire.

    Reading any other metric raises MethodError, which says how to declare it.
    """

    def __init__(self, method: str, metrics: Mapping[str, FloatArray]) -> None:
        super().__init__(metrics)
        self._method = method

    def __missing__(self, metric: str) -> FloatArray:
        """Raise MethodError."""
        raise MethodError(
            f"{self._method} reads the metric {metric!r}, which its needs do not name: write needs"
            f" = frozenset({{{metric!r}}}) in the class"
        )


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The usable replies of one round, in the order of client names.

    Attributes
    ----------
    round
        t, the server round, from 1.
    num_rounds
        T, the rounds of the whole run; None if Flower's hooks are called without it.
    names
        Client names in ascending order, m of them.
    online
        The names of all clients that were online when the round's clients were drawn, in ascending
        order; with the option `training_clients`, only those of training clients.
    counts
        n_k, the training examples of each client, shape (m,).
    prior
        p_k, the aggregation prior within the round, shape (m,), summing to 1.
    draws
        How often each client was drawn, shape (m,); always 1 if clients are drawn without
        replacement.
    metrics
        The metrics that the method needs, by their name on the wire, each of shape (m,).
    memory
        The labels of the kept rows that the round recalls, r of them.
    past
        What the method knows of earlier rounds.
    second
        Whether each reply has a second update (`Method.second`), which is also a row.
    sent
        The factors of the kept rows that were sent to the round's clients, by the name of their
        record.
    arrays
        The names of the model's arrays that are trained, in its order, L of them.
    gram_of
        Computes the Gram matrix of the m updates, the m second updates, if any, and the r kept
        rows, in this order.
    grams_of
        Computes the Gram matrix within each array.
    squared_norms_of
        Computes only the squared norms of the m updates.
    """

    round: int
    names: tuple[str, ...]
    counts: FloatArray
    prior: FloatArray
    draws: FloatArray
    gram_of: Callable[[], FloatArray]
    grams_of: Callable[[], FloatArray]
    squared_norms_of: Callable[[], FloatArray]
    num_rounds: int | None = None
    online: tuple[str, ...] = ()
    metrics: Mapping[str, FloatArray] = field(default_factory=dict)
    memory: tuple[Kept, ...] = ()
    past: Past = field(default_factory=Past)
    second: bool = False
    sent: Mapping[str, float] = field(default_factory=dict)
    arrays: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """m, the number of usable replies."""
        return len(self.names)

    @property
    def rows(self) -> int:
        """The number of rows: m + r, or 2m + r with second updates."""
        return (1 + self.second) * self.size + len(self.memory)

    @cached_property
    def gram(self) -> FloatArray:
        """G, the inner products of all rows, shape (m + r, m + r); computed on first use."""
        return self.gram_of()

    @cached_property
    def grams(self) -> FloatArray:
        """G_l, the inner products within each array, shape (L, m + r, m + r).

        They sum to G, and cost as much as G.
        """
        return self.grams_of()

    @cached_property
    def squared_norms(self) -> FloatArray:
        """‖u_k‖², shape (m,); cheaper than the Gram matrix."""
        return self.squared_norms_of()

    @property
    def roster(self) -> Mapping[str, float]:
        """n_k of every known training client; see `Past.roster`."""
        return self.past.roster

    @property
    def losses(self) -> FloatArray:
        """F_k, the loss of the received model on each client's whole training set, shape (m,)."""
        return self.metrics[LOSS_BEFORE]

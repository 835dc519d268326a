"""Clients whose updates oppose the mean of the others in most rounds: hostile, or honest and badly served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .updates import FloatArray

FEWEST_ROUNDS = 5
"""With fewer rounds, a client is not named: single rounds go by chance."""

LOST_SHARE = 0.05
"""A step has lost the common direction when it goes less than this share as far along the mean update as the mean."""


@dataclass(frozen=True)
class Opposition:
    """How often each client has opposed the others: the rounds in which it has, and all of its rounds."""

    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def after(self, names: Sequence[str], gram: FloatArray) -> "Opposition":
        """Return it after a round with the updates of these clients, from their Gram matrix."""
        counts = dict(self.counts)
        for name, opposes in zip(names, opposing(gram), strict=True):
            before, rounds = counts.get(name, (0, 0))
            counts[name] = before + bool(opposes), rounds + 1
        return Opposition(counts)

    @property
    def named(self) -> tuple[str, ...]:
        """The clients that have opposed the others in most of their rounds, in the order of names."""
        often = (name for name, (opposed, rounds) in self.counts.items() if 2 * opposed > rounds >= FEWEST_ROUNDS)
        return tuple(sorted(often))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, in plain values."""
        return {name: [*counts] for name, counts in self.counts.items()}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Opposition":
        """Continue from what `state_dict` returned."""
        return cls({name: (int(opposed), int(rounds)) for name, (opposed, rounds) in state.items()})


def opposing(gram: FloatArray) -> FloatArray:
    """Return for each update whether its inner product with the sum of the others is negative, shape (m,)."""
    return np.asarray(gram.sum(axis=1) - np.diagonal(gram) < 0.0)


def has_lost_common_direction(coefficients: FloatArray, gram: FloatArray) -> bool:
    """Return whether a step Σ c_k u_k has next to nothing of the mean update, which is not zero itself."""
    sums, weight = gram.sum(axis=1), float(coefficients.sum())
    common = float(sums.sum()) / len(gram)
    return common > 0.0 and float(coefficients @ sums) < LOST_SHARE * common * weight

"""Clients whose updates oppose the mean of the others in most rounds: hostile, or honest and badly served."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .updates import CHUNK_COLUMNS, FloatArray, Vectors, row_squares

FEWEST_ROUNDS = 5
"""With fewer rounds, a client is not named: single rounds go by chance."""

SAMPLED_CHUNKS = 4
"""Where no Gram matrix is there, at most so many parts of CHUNK_COLUMNS numbers are read of each update."""


Counts = dict[str, tuple[int, int]]
"""In how many rounds each client has opposed the others, and in how many it has taken part."""


@dataclass(frozen=True)
class Products:
    """Inner products of a round's updates with their sum, and with themselves, each of shape (m,)."""

    with_sum: FloatArray
    squares: FloatArray

    @classmethod
    def of_gram(cls, gram: FloatArray) -> "Products":
        """Return those that a Gram matrix has."""
        return cls(gram.sum(axis=1), np.diagonal(gram))

    @classmethod
    def of_sample(cls, vectors: Vectors, random: np.random.Generator) -> "Products":
        """Return those of at most SAMPLED_CHUNKS parts at equal distances: of a small model, of all of it."""
        every = max(1, math.ceil(vectors.size / CHUNK_COLUMNS / SAMPLED_CHUNKS))
        products = np.zeros((2, len(vectors)))
        with np.errstate(over="ignore", invalid="ignore"):
            for _, chunk in vectors.chunks(False, every, int(random.integers(every))):
                products[0] += chunk @ (vectors.scales.astype(chunk.dtype) @ chunk)
                products[1] += row_squares(chunk)
            return cls(products[0] * vectors.scales, products[1] * vectors.scales**2)

    @cached_property
    def cosines(self) -> FloatArray:
        """Each update's cosine with the sum of the others; 0 where one of the two is zero."""
        others = np.maximum(self.with_sum.sum() - 2.0 * self.with_sum + self.squares, 0.0)
        lengths = np.sqrt(self.squares) * np.sqrt(others)
        products = self.with_sum - self.squares
        cosines: FloatArray = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0.0)
        return cosines

    def has_lost(self, coefficients: FloatArray) -> bool:
        """Return whether a step Σ c_k u_k goes less than a twentieth as far along the mean update as the mean does."""
        common = float(self.with_sum.sum()) / len(self.squares)
        least = 0.05 * common * float(coefficients.sum())
        return common > 0.0 and float(coefficients @ self.with_sum) < least


def add_round(counts: Counts, names: Collection[str], opposing: Collection[str]) -> None:
    """Count a round with the updates of clients, of whom some oppose the others."""
    for name in names:
        opposed, rounds = counts[name] if name in counts else (0, 0)  # noqa: SIM401 # not a call for each client
        counts[name] = opposed + (name in opposing), rounds + 1


def opposing_often(counts: Counts, names: Collection[str]) -> tuple[str, ...]:
    """Return those of these clients that have opposed the others in most of their rounds, in the order of names."""
    known = [(name, *counts[name]) for name in sorted(names) if name in counts]
    return tuple([name for name, opposed, rounds in known if 2 * opposed > rounds >= FEWEST_ROUNDS])

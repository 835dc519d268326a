"""Numbers as integers that can be added without loss: fixed-point limbs for scalars, quantised words for vectors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .field import PRIME, Words

FIELD_LIMB, WORD_LIMB = 40, 20
"""Bits of a limb that is shared, and of one among masked words of 32 bits: sums of 100 fit."""

MAX_LIMBS = 64
"""Most limbs of one shared scalar."""

Masked = NDArray[np.uint32]
"""Words modulo 2^32."""


@dataclass(frozen=True)
class FixedPoint:
    """A format of scalars: bits before the point and after it. What is beyond counts as the largest number."""

    before: int
    after: int

    def limbs(self, bits: int) -> int:
        """Return how many limbs of this many bits a scalar has."""
        return -(-(self.before + self.after) // bits)

    def integer(self, value: float) -> int:
        """Return a scalar as a whole number of 2^−after, cut off towards zero."""
        most = 1 << (self.before + self.after)
        if abs(value) >= math.ldexp(1.0, self.before):
            return most - 1 if value > 0.0 else 1 - most
        numerator, denominator = float(value).as_integer_ratio()
        size = (abs(numerator) << self.after) // denominator
        return size if value >= 0.0 else -size

    def split(self, value: float, bits: int) -> list[int]:
        """Return a scalar's limbs, the lowest first, all with its sign."""
        whole = self.integer(value)
        size, sign, mask = abs(whole), (1 if whole >= 0 else -1), (1 << bits) - 1
        return [sign * (size >> bits * place & mask) for place in range(self.limbs(bits))]

    def join(self, limbs: Sequence[int], bits: int) -> int:
        """Return the whole number with these limbs, or sums of limbs."""
        return sum(limb << bits * place for place, limb in enumerate(limbs))

    def value(self, whole: int) -> float:
        """Return a sum of scalars as a float."""
        try:
            return whole / (1 << self.after)
        except OverflowError:
            return math.copysign(math.inf, whole)


def to_field(limbs: Sequence[int]) -> Words:
    """Return signed limbs as numbers of the field."""
    return np.array([limb % PRIME for limb in limbs], np.uint64)


def from_field(words: Words) -> list[int]:
    """Return numbers of the field as signed ones."""
    return [int(word) - PRIME if int(word) > PRIME // 2 else int(word) for word in words]


def to_words(limbs: Sequence[int]) -> Masked:
    """Return signed limbs as words."""
    return np.array(limbs, np.int64).astype(np.uint32)


def signed(words: Masked) -> NDArray[np.int32]:
    """Return a sum of words as signed numbers."""
    return words.view(np.int32)


def bound_of(kappa: float, total: float, size: int) -> float:
    """Return R, the bound of a coordinate: κ·C·min(1, 64/√d), rounded up to a power of two."""
    bound = kappa * total * min(1.0, 64.0 / math.sqrt(max(1, size)))
    return math.ldexp(1.0, math.ceil(math.log2(bound))) if bound > 0.0 else 1.0


def levels(clients: int) -> int:
    """Return L, the largest quantised number of which `clients` can be added."""
    return ((1 << 31) - 1) // clients


def quantise(values: NDArray[np.float64], bound: float, clients: int, random: np.random.Generator) -> Masked:
    """Return values as words: ⌊v/R·L + U[0, 1)⌋, clipped to [−L, L]."""
    most = levels(clients)
    scaled = values * (most / bound)
    scaled += random.random(values.size)
    np.floor(scaled, out=scaled)
    np.clip(scaled, -most, most, out=scaled)
    return scaled.astype(np.int32).view(np.uint32)


def restore(words: Masked, bound: float, clients: int) -> NDArray[np.float64]:
    """Return the sum of values of which these are the summed words."""
    return signed(words).astype(np.float64) * (bound / levels(clients))

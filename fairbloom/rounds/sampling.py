"""How many clients take part in a round, and which ones are drawn."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.streams import generator

T = TypeVar("T")


def share(fraction: float, of: int, minimum: int) -> int:
    """Return ⌈`fraction` · `of`⌉, at least `minimum` and at most `of`.

    The fraction is read in decimal: 0.29 of 100 is 29.
    """
    whole = math.ceil(Fraction(str(fraction)) * of)
    return min(max(whole, minimum), of)


def sample_by(
    shares: NDArray[np.float64], names: Sequence[str], wanted: int, random: np.random.Generator
) -> list[str]:
    """Draw `wanted` names with replacement, each with its share of the sum, which is not 0.

    The result is in the order of the names.
    """
    places = random.choice(len(names), wanted, p=shares / shares.sum())
    return [names[place] for place in sorted(places.tolist())]


def sample(names: Sequence[T], wanted: int, seed: int, purpose: str, number: int) -> list[T]:
    """Draw `wanted` names uniformly without replacement, from (seed, purpose, round).

    `names` and the result are in ascending order. The work grows with `wanted`, not with the number
    of names, because places are drawn and not names.
    """
    if wanted >= len(names):
        return list(names)
    places = generator(seed, purpose, number).choice(
        len(names), wanted, replace=False, shuffle=False
    )
    return [names[place] for place in sorted(places.tolist())]

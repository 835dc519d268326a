"""A discrete Gaussian, drawn exactly with integers, and the release of sums with it.

Floating-point noise has holes in its tail, and shows in its last bits which sum it was added to
(Mironov, CCS 2012; Casacuberta et al., CCS 2022, arXiv 2207.10635). So a sum is rounded to a
lattice, and an integer of a discrete Gaussian distribution is added: no float is drawn, and none
has a part in a decision (Canonne, Kamath, Steinke, NeurIPS 2020, arXiv 2004.00010, Algorithms 1 to
3, with a Laplace distribution of the deviation's scale). Words come from the operating system: the
generators of PyTorch and NumPy are predictable, and depend on seeds that a server knows.

Why the budget of the continuous Gaussian holds: let X be normal around q with variance s² − r², and
Y a discrete Gaussian of deviation r around X. By Poisson summation, Y is within a factor e^±η of
the discrete Gaussian of deviation s around q, η ≤ 5 exp(−2π²r²) (Peikert, CRYPTO 2010, Theorem
3.1). With r = 2, η is below 3e-34. A release is so, up to that factor, computed from a continuous
Gaussian of variance s² − 4, and μ is lowered by more than that (`budget.mu_of`).
"""

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.lattice import (
    DEVIATION_BITS as DEVIATION_BITS,
    MOST_ROWS as MOST_ROWS,
    Integers as Integers,
    Lattice as Lattice,
    Vector as Vector,
)

Naturals = NDArray[np.uint64]

# Returns this number of random words of 64 bits.
Words = Callable[[int], Naturals]

# Returns this number of draws of a discrete Gaussian of deviation 2^DEVIATION_BITS.
Draw = Callable[[int], Integers]

# Draws are made in whole blocks: the time of a single draw tells its size.
BLOCK = 4096

# A draw of as many deviations is left out, which has the probability e^−32,768.
DEVIATIONS = 256


def system_words(count: int) -> Naturals:
    """Return words from the operating system."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def draw_noise(count: int) -> Integers:
    """Return draws of the noise of an account on a device."""
    return draw_gaussian(count, DEVIATION_BITS, system_words)


def draw_gaussian(count: int, bits: int, words: Words, block: int = BLOCK) -> Integers:
    """Return draws of the discrete Gaussian around 0 of deviation 2^bits, 1 ≤ bits ≤ 24.

    Whole blocks are drawn, and the first draws are returned.
    """
    missing = -(-count // block) * block
    found = list[Integers]()
    while missing > 0:
        # 0.48 of the tries are accepted
        found.append(_draw_some(9 * missing // 4 + 16, bits, words))
        missing -= len(found[-1])
    return np.concatenate(found)[:count]


def _draw_some(tries: int, bits: int, words: Words) -> Integers:
    """Return the draws that are accepted of a number of tries."""
    rests = words(tries) >> np.uint64(64 - bits)
    rests = rests[bernoulli_exp(rests, bits, words)]
    wholes = draw_geometric(len(rests), words)
    sizes = rests + (wholes << np.uint64(bits))  # of a discrete Laplace distribution of this scale
    negative = words(len(sizes)) & np.uint64(1) == 1
    kept = (wholes < DEVIATIONS) & ~(negative & (sizes == 0))
    sizes, negative = sizes[kept], negative[kept]
    scale = np.uint64(2**bits)
    away = np.maximum(sizes, scale) - np.minimum(sizes, scale)
    halves = np.uint64(2 * bits + 1)
    accepted = draw_geometric(len(sizes), words) >= (away * away) >> halves
    accepted &= bernoulli_exp(away * away & np.uint64(2 ** int(halves) - 1), int(halves), words)
    sizes, negative = sizes[accepted].astype(np.int64), negative[accepted]
    signed: Integers = np.where(negative, -sizes, sizes)
    return signed


def bernoulli_exp(numerators: Naturals, bits: int, words: Words) -> NDArray[np.bool_]:
    """Return for each j of `numerators`, up to 2^bits, whether an event of exp(−j/2^bits) happens.

    The k-th trial succeeds with j/(k 2^bits), and the event happens if the first failure is odd.
    """
    happens = np.zeros(len(numerators), np.bool_)
    trying = np.arange(len(numerators))
    trial = 1
    while trying.size:
        succeeds = words(trying.size) >> np.uint64(64 - bits) < numerators[trying]
        if trial > 1:
            succeeds &= _one_in(trial, trying.size, words)
        happens[trying[~succeeds]] = trial % 2 == 1
        trying = trying[succeeds]
        trial += 1
    return happens


def draw_geometric(count: int, words: Words) -> Naturals:
    """Return how often in a row an event of exp(−1) happens, for each of `count`."""
    times = np.zeros(count, np.uint64)
    going = np.arange(count)
    while going.size:
        going = going[bernoulli_exp(np.full(going.size, 2, np.uint64), 1, words)]
        times[going] += np.uint64(1)
    return times


def _one_in(number: int, count: int, words: Words) -> NDArray[np.bool_]:
    """Return `count` times whether an event of 1/number happens."""
    most = 2**63 // number * number  # words from here on would favour the first remainders
    drawn = words(count) >> np.uint64(1)
    while (beyond := drawn >= most).any():
        drawn[beyond] = words(int(beyond.sum())) >> np.uint64(1)
    happens: NDArray[np.bool_] = drawn % np.uint64(number) == 0
    return happens


def release(places: Integers, spacing: float, draw: Draw) -> Vector:
    """Return places of a lattice with noise, as numbers: all that leaves an account is from here.

    The spacing is public: the product with it is computed from a noisy integer.
    """
    return spacing * (places + draw(len(places))).astype(np.float64)

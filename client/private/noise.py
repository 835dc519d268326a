"""Gaussian noise from the operating system, and its release on a lattice.

The random generators of PyTorch and NumPy are predictable, and depend on seeds that a server
knows. Doubles of any generator show in their last bits which sums they were added to: so a sum and
its noise are rounded to a lattice, each by itself (Mironov, CCS 2012; Casacuberta et al., CCS 2022,
arXiv 2207.10635). The noise is that of draws with 53 bits; what holds beyond these is not proved.
"""

import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Vector = NDArray[np.float64]

# Returns this number of draws of a standard normal distribution.
Draw = Callable[[int], Vector]

# The lattice's spacing is the largest power of two up to the noise's deviation times 2^−20.
LATTICE_BITS = 20


def draw_noise(count: int) -> Vector:
    """Return draws of a standard normal distribution, from the operating system's bits."""
    return normal_of(np.frombuffer(os.urandom(8 * count), np.uint64))


def normal_of(words: NDArray[np.uint64]) -> Vector:
    """Return a standard normal number of each random word: by 52 bits and a sign."""
    # (k + 1/2) 2^−53 is exact for k < 2^52, and below 1/2: neither end is infinite
    tails = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-53
    magnitudes: Vector = -ndtri(tails)
    return np.where(words & np.uint64(1), magnitudes, -magnitudes)


def release(total: Vector, sigma: float, sensitivity: float, draw: Draw) -> Vector:
    """Return a sum with noise of `sigma` times its sensitivity, both rounded to a lattice.

    `sensitivity` is the largest Euclidean change of `total` if a row is blanked. Rounding adds the
    lattice's spacing times the root of the number of entries, for which noise is drawn, too.
    """
    spacing = lattice(sigma * sensitivity)
    scale = sigma * (sensitivity + spacing * math.sqrt(total.size))
    noise = draw(total.size) * scale
    released: Vector = spacing * (np.rint(total / spacing) + np.rint(noise / spacing))
    return released


def lattice(deviation: float) -> float:
    """Return the spacing γ: the largest power of two up to `deviation` · 2^−20."""
    _, exponent = math.frexp(deviation)  # 2^(exponent − 1) ≤ deviation
    return math.ldexp(1.0, exponent - 1 - LATTICE_BITS)

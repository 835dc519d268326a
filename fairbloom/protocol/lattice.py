"""The lattice of numbers on which sums are released, by what their noise is to be.

Both sides compute it, from public facts: a client that adds noise, and a server that reads a sum.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import ReportableError

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

# The deviation of a client's noise, in places of the lattice, is 2 to this power.
DEVIATION_BITS = 24

# The most that the rounding of a sum may add to its sensitivity, in deviations of the noise; and
# the largest integer that is released: larger ones are no exact floats.
MOST_ROUNDING = 2.0**22
MOST_PLACES = 2.0**52

# What the float64 arithmetic before the rounding may add to a sensitivity, for up to MOST_ROWS.
ARITHMETIC = 2.0**-16
MOST_ROWS = 2**18


@dataclass(frozen=True)
class Lattice:
    """The lattice on which a sum of `size` numbers is released with noise of `sigma`.

    `sensitivity` is the largest Euclidean change of the sum if a row is blanked. Rounding
    adds up to the spacing for each number, and float64 arithmetic a little: noise is for both.
    The noises of `honest` clients add up to that of the sum.
    """

    sigma: float
    sensitivity: float
    size: int
    honest: int = 1

    @property
    def spacing(self) -> float:
        """γ, with which the deviation γ 2^24 √h is σ times the sensitivity with both parts."""
        noise = 2.0**DEVIATION_BITS * math.sqrt(self.honest)
        places = noise - self.sigma * math.sqrt(self.size)
        return self.sigma * self.sensitivity * (1.0 + ARITHMETIC) / places

    @property
    def deviation(self) -> float:
        """The standard deviation of one client's noise in each number."""
        return self.spacing * 2.0**DEVIATION_BITS

    def check(self, rows: int) -> None:
        """Raise ReportableError unless the arithmetic is exact for a sum over `rows` rows."""
        rounding = self.sigma * math.sqrt(self.size)
        too_many = rounding > MOST_ROUNDING or rows > MOST_ROWS
        if too_many or rows * self.sensitivity > MOST_PLACES * self.spacing:
            raise ReportableError(
                f"{self.size} numbers with noise {self.sigma:.3g} over {rows} rows are beyond the"
                f" exact arithmetic of a privacy account: take a smaller model, or at most"
                f" {MOST_ROWS} rows"
            )

    def places(self, total: Vector) -> Integers:
        """Return the nearest places of the lattice."""
        return np.rint(total / self.spacing).astype(np.int64)

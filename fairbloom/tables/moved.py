"""Tell that a column is in another unit than in training, by its mean and deviation there.

A file for predictions, or a new site's, is one; there are no other sites to compare it with. A
column stands out if nearly all of its numbers lie on one side of training's mean, far from it, or
if it is far from training and a known conversion brings it back.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fairbloom.text import join_first

from .conversions import CONVERSIONS, Conversion
from .encoding import Moments, measure_moments
from .findings import SHOWN
from .profiles import PROBABILITIES
from .schema import FileField
from .toml import quote, write_key

# Numbers of a column from which it is judged.
FEWEST = 20

# Nearly all numbers, and the deviations beyond which they lie on one side of the mean; or most of
# them, on any side.
NEARLY_ALL = 0.95
DEVIATIONS = 2.0
FAR = 5.0

# Different numbers of a column from which a conversion may explain it: codes and truth values are
# explained by too many.
DISTINCT = 10

# A column is far from training beyond this distance. A conversion explains it if it leaves at most
# EXPLAINED, and at most the distance divided by CURED; all that leave half as much again, and
# MARGIN, are named, the substance in the column's name first. As of sites that are
# compared by their quantiles, see `comparison`.
APART = 0.75
EXPLAINED = 0.3
CURED = 2.5
ALSO = 1.5
MARGIN = 0.02

# The smallest deviation that divides a distance, in shares of training's.
SMALLEST = 0.02

# A normal distribution's quantiles, in deviations from its mean, and their range.
_STANDARD = NormalDist()
NORMAL = np.array([_STANDARD.inv_cdf(share) for share in PROBABILITIES.tolist()])
NORMAL_RANGE = float(NORMAL[-1] - NORMAL[0])

# Significant digits of a factor: known conversions have no more.
DIGITS = 4


@dataclass(frozen=True)
class Moved:
    """A column far from training.

    Attributes
    ----------
    name
        The column.
    far, count
        Its numbers that are far from the mean of training, and all.
    ways
        The conversions from training's unit into the file's that explain it, the likeliest first.
    """

    name: str
    far: int
    count: int
    ways: tuple[Conversion, ...]

    def say(self, own: FileField, files: str) -> str:
        """Return what stands out, and the lines that mend it.

        `own` is how the file's column is read now, and `files` the file's key under `files`, "" if
        it is none.
        """
        if not self.ways:
            return (
                f"column {self.name!r}: {self.far} of {self.count} numbers are far from"
                " training's: check its unit"
            )
        units = dict.fromkeys(way.about for way in self.ways)
        like = join_first([*units], SHOWN)
        said = f"column {self.name!r} is not in the unit of training: it looks like {like}"
        if not files:
            return f"{said}: convert it"
        return f"{said}; if so, say {self._propose(own)} under [files.{quote(files)}]"

    def _propose(self, own: FileField) -> str:
        """Return the file's factor and offset by the likeliest conversion, in place of `own`."""
        back = self.ways[0].inverse()
        offset = own.offset * back.factor + back.offset
        field = f"fields.{write_key(self.name)}"
        said = f"{field}.factor = {own.factor * back.factor:.{DIGITS}g}"
        if offset or own.offset:
            said = f"{said} and {field}.offset = {offset:.{DIGITS}g}"
        return said


def join_moments(moments: NDArray[np.float64]) -> Moments:
    """Return mean and deviation of several clients' numbers, each client counted once.

    `moments` are theirs, shape (clients, 2).
    """
    centers, scales = moments.T
    mean = float(centers.mean())
    variance = (scales**2 + (centers - mean) ** 2).mean()
    return mean, float(np.sqrt(variance))


def find_moved(name: str, values: NDArray[np.float64], training: Moments) -> Moved | None:
    """Return that a column is far from training; None if it is not, or if that is unclear.

    `values` are its numbers in the schema's unit, NaN if missing. `training` is their mean and
    deviation there. Of fewer numbers than FEWEST, that is unclear. A single value may be a property
    of the site, unless it is beyond FAR.
    """
    numbers = values[np.isfinite(values)]
    moments = measure_moments(numbers)
    if len(numbers) < FEWEST or moments is None or not training[1]:
        return None
    center, scale = training
    deviations = (numbers - center) / scale
    above = np.count_nonzero(deviations > DEVIATIONS)
    below = np.count_nonzero(deviations < -DEVIATIONS)
    beyond = np.count_nonzero(np.abs(deviations) > FAR)
    far = max(above, below) if moments[1] else 0
    ways: tuple[Conversion, ...] = ()
    if len(np.unique(numbers)) > DISTINCT:
        ways = _explain(name, moments, training)
    if far < NEARLY_ALL * len(numbers) and 2 * beyond <= len(numbers) and not ways:
        return None
    return Moved(name, int(max(far, beyond)), len(numbers), ways)


def _explain(name: str, moments: Moments, training: Moments) -> tuple[Conversion, ...]:
    """Return the conversions that explain how far a column is from training."""
    apart = _distance(moments, training)
    if not apart > APART:
        return ()
    rest: dict[Conversion, float] = {}
    for way in CONVERSIONS:
        back = way.inverse()
        moved = (back.factor * moments[0] + back.offset, abs(back.factor) * moments[1])
        rest[way] = _distance(moved, training)
    best = min(rest.values())
    if best > EXPLAINED or best > apart / CURED:
        return ()
    named = [way for way in rest if way.is_named_in(name) and rest[way] <= EXPLAINED]
    also = [way for way in rest if way not in named and rest[way] <= ALSO * best + MARGIN]
    return (*named, *also)


def _distance(moments: Moments, training: Moments) -> float:
    """Return the mean difference of two normal distributions' quantiles, by the smaller range."""
    center, scale = training
    mean, deviation = moments
    deviation = max(deviation, SMALLEST * scale)
    between = np.abs(mean + deviation * NORMAL - center - scale * NORMAL).mean()
    return float(between / (NORMAL_RANGE * min(deviation, scale)))

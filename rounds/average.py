"""The mean of a run's global models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from .arrays import FloatArray, Model


@dataclass(frozen=True)
class Average:
    """The sum in float64 of the global models after some rounds, which gives their mean."""

    rounds: int = 0
    sums: Mapping[str, FloatArray] = field(default_factory=dict)

    def plus(self, model: Model) -> Self:
        """Return the sum with one more model."""
        sums = {}
        for name, array in model.items():
            if array.dtype.kind == "f":
                total = np.add(self.sums.get(name, 0.0), array, dtype=np.float64)
                sums[name] = np.asarray(total)
        return type(self)(self.rounds + 1, sums)

    def mean(self, last: Model) -> Model:
        """Return the mean, in the dtypes of the last model and with its integer arrays.

        It is the last model itself if no model was added.
        """
        if not self.rounds:
            return last
        means = {
            name: np.asarray(total / self.rounds, last[name].dtype)
            for name, total in self.sums.items()
        }
        return {name: means.get(name, array) for name, array in last.items()}

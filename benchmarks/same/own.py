"""A method and a model of a user's own, without a memory."""

import time

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fairbloom.rounds.cohort import Cohort
from fairbloom.strategies import FairStrategy


class Softmax(FairStrategy):
    """Weights grow with the loss.

    Parameters
    ----------
    heat
        How fast they grow.
    """

    needs = frozenset({"loss-before"})

    def __init__(self, *, heat: float = 1.0, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.heat = heat

    def weigh(self, cohort: Cohort) -> NDArray[np.float64]:
        """Return a softmax of the losses."""
        weights = np.exp(self.heat * (cohort.losses - cohort.losses.max()))
        return np.asarray(weights / weights.sum())


class Slow(nn.Module):
    """A linear model with a pause, so that each round has a checkpoint, and can be met."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        time.sleep(0.05)
        logits: Tensor = self.layers(x)
        return logits

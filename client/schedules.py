"""Schedules of a learning rate: how it changes over a run's rounds."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each round, as a factor of the full learning rate.

    The first `warmup` rounds have 1/(warmup + 1), 2/(warmup + 1), … of the full rate. Afterwards it
    is constant, or falls towards zero (linear, cosine).
    """

    shape: str = "constant"
    warmup: int = 0

    def factor(self, done: int, count: int) -> float:
        """Return the factor of the round after `done` of `count` rounds; it is above 0.

        After the warm-up of W rounds it is (1 + cos π x) / 2 or 1 − x, with
        x = (done − W) / (count − W): the full rate at first, and zero just after the last round.
        """
        done = min(done, count - 1)
        if done < self.warmup:
            return (done + 1) / (self.warmup + 1)
        if self.shape == "constant":
            return 1.0
        over = (done - self.warmup) / (count - self.warmup)
        if self.shape == "linear":
            return 1.0 - over
        return 0.5 * (1.0 + math.cos(math.pi * over))

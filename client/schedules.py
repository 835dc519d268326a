"""Schedules of a learning rate: how it changes over a run's rounds."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A course of the learning rate, as a factor of its full height.

    After the warm-up it stays (constant) or falls towards zero (linear, cosine). The first `warmup`
    rounds have 1/(warmup + 1), 2/(warmup + 1), … of the full rate.
    """

    shape: str = "constant"
    warmup: int = 0

    def factor(self, done: int, count: int) -> float:
        """Return the factor of a round before which `done` of `count` are over.

        Above 0 for all of them.

        After the warm-up of W it is (1 + cos π x) / 2 or 1 − x, with x = (done − W) / (count − W):
        the full rate at first, and zero just after the last.
        """
        done = min(done, count - 1)
        if done < self.warmup:
            return (done + 1) / (self.warmup + 1)
        if self.shape == "constant":
            return 1.0
        over = (done - self.warmup) / (count - self.warmup)
        return 1.0 - over if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * over))

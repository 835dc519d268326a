"""The learning rate of each round, by a run's settings: clients step by it, and so does a server.

A server steps by it where clients send it gradients, as sums.
"""

import math

from .settings import RunSettings


def learning_rate_in(settings: RunSettings, number: int) -> float:
    """Return the learning rate of round `number`, from 1, with the run's decay and schedule."""
    factor = schedule_factor(settings.schedule, settings.warmup, number - 1, settings.num_rounds)
    return settings.learning_rate * settings.learning_rate_decay ** (number - 1) * factor


def schedule_factor(shape: str, warmup: int, done: int, count: int) -> float:
    """Return the learning rate of the round after `done` of `count`, over the full one; above 0.

    The first W rounds, the warm-up, have 1/(W + 1), 2/(W + 1), … of the full rate. Afterwards it is
    constant, or it is (1 + cos π x) / 2 or 1 − x of the full rate, with
    x = (done − W) / (count − W): the full rate at first, and zero just after the last round.
    """
    done = min(done, count - 1)
    if done < warmup:
        return (done + 1) / (warmup + 1)
    if shape == "constant":
        return 1.0
    over = (done - warmup) / (count - warmup)
    return 1.0 - over if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * over))

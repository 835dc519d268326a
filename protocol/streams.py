"""Random streams of server and clients: functions of the seed, the purpose and the place, and of nothing else."""

import numpy as np


def generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """Return the stream for one purpose at one place (round, client, …), whatever was drawn before it."""
    return np.random.default_rng([seed, *repr((purpose, *where)).encode()])

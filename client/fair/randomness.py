"""The global random generators of Python, NumPy and PyTorch, from which users' functions draw."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept() -> Iterator[None]:
    """Give the global generators, at the end, the state that they have now."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Seed the global generators, and give them at the end the state that they have now."""
    with kept():
        seed(number)
        yield


def seed(number: int) -> None:
    """Seed the global generators, those of CUDA devices too."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)

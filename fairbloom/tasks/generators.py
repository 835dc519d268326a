"""The global random generators of Python, NumPy and PyTorch, which users' code uses."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(number: int | None) -> None:
    """Seed the global generators, including those of CUDA devices; None: from the system's entropy.

    Without a seed, PyTorch's generators start every process in the same state.
    """
    random.seed(number)
    np.random.seed(None if number is None else number % 2**32)
    if number is None:
        torch.seed()
    elif torch.accelerator.is_available():
        torch.manual_seed(number)
    else:
        # 50 times as fast: torch.manual_seed keeps the call, with its stack, for a later device.
        torch.default_generator.manual_seed(number)


def generators_of(device: torch.device) -> list[torch.Generator]:
    """Return PyTorch's global generators that a model on this device draws from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    return generators


def restore_states(generators: Sequence[torch.Generator], states: Sequence[torch.Tensor]) -> None:
    """Set the state of each generator."""
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


@contextmanager
def all_seeded(number: int | None) -> Iterator[None]:
    """Seed the global generators in this block, and restore their states at the end."""
    python = random.getstate()
    numpy = np.random.get_state()
    try:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(devices):
            seed_all(number)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)

"""The choice of the device that a client computes on."""

import torch

from fairbloom.errors import ReportableError


def choose_device(name: str) -> torch.device:
    """Return the device `name`; for "auto" the best that this machine has: CUDA, then MPS, then the CPU.

    Raises
    ------
    FairbloomError
        When the device is not available on this machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ReportableError(
            f"device = {name!r} is not available here: auto takes the best that is, of cuda, mps and cpu"
        ) from error

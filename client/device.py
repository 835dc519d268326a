"""The choice of the device that a client computes on, and the differences between devices."""

import os
from functools import cache

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.logs import log

# Words of CUDA errors after which a process cannot use its GPU any more.
LOST = ("device-side assert", "illegal memory access", "unspecified launch failure")


@cache  # all clients of a process use the same device, even if a busy GPU becomes free
def choose_device(name: str) -> torch.device:
    """Return the device `name`; for "auto" the first usable one of CUDA, MPS and the CPU.

    On CUDA, this switches PyTorch to full precision and deterministic operations.
    """
    if name != "auto":
        try:
            return _begin(name)
        except (RuntimeError, AssertionError) as error:
            raise ReportableError(
                f"device = {name!r} is not available on this machine: auto chooses the best of"
                f" cuda, mps and cpu ({_first_line(error)})"
            ) from error
    for best, backend in (("cuda", torch.cuda), ("mps", torch.backends.mps)):
        if backend.is_available():
            try:
                return _begin(best)
            except RuntimeError as error:
                log.warning(
                    "device = auto continues without %s, which cannot be used: %s",
                    best,
                    _first_line(error),
                )
    return torch.device("cpu")


def _begin(name: str) -> torch.device:
    if name.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS begins
    device = torch.zeros(1, device=name).device
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    return device


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def check_device(error: Exception) -> None:
    """Raise FairbloomError if an error means that this process has lost its GPU.

    It is then not the fault of a client, and the run cannot continue.
    """
    if any(words in str(error) for words in LOST):
        raise FairbloomError(
            f"the GPU has stopped ({_first_line(error)}), and this process cannot use it any more."
            " Often a target is outside the model's classes, or an index outside an embedding: set"
            " device = cpu, which names the line"
        ) from error


def in_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64; it moves from MPS, which has no float64, to the CPU."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.double()

"""The choice of the device that a client computes on, and what devices differ in."""

import os
from functools import cache

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.logs import log

LOST = ("device-side assert", "illegal memory access", "unspecified launch failure")
"""What CUDA says of errors after which a process cannot compute on its GPU any more."""


@cache  # a GPU that was busy once is not taken by later clients of the process
def choose_device(name: str) -> torch.device:
    """Return the device `name`.

    For "auto" the best that can be used here: CUDA, then MPS, then the CPU.

    On CUDA, PyTorch is then asked for full precision and for operations that give the same bits
    again.
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
                    "device = auto goes on without %s, which cannot be used: %s",
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
    """Raise FairbloomError where an error says that this process has lost its GPU: no client is to blame then."""
    if any(words in str(error) for words in LOST):
        raise FairbloomError(
            f"the GPU has stopped ({_first_line(error)}), and this process cannot use it any more."
            " Often a target is outside the model's classes, or an index outside an embedding: set"
            " device = cpu, which names the line"
        ) from error


def in_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, which MPS lacks: there on the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()

"""The choice of the device that a client computes on, and the differences between devices."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.logs import log, log_once

FLOAT32 = "float32"
TF32 = "tf32"

# Words of CUDA errors after which a process cannot use its GPU any more.
LOST = ("device-side assert", "illegal memory access", "unspecified launch failure")


@cache  # all clients of a process use the same device, even if a busy GPU becomes free
def choose_device(name: str) -> torch.device:
    """Return the device `name`; for "auto" the first usable one of CUDA, MPS and the CPU."""
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
    return torch.zeros(1, device=name).device


@contextmanager
def computing_in(precision: str, device: torch.device) -> Iterator[None]:
    """Set PyTorch's flags of CUDA for a run's `precision`; restore them at the end.

    Float32 has full precision and deterministic operations. New memory is not filled: nothing here
    reads memory before it is written, and filling takes as long as a small operation.

    Raise FairbloomError if the process loses its GPU.
    """
    if device.type != "cuda":
        if precision == TF32:
            log_once(
                "precision = tf32 is float32 on %s: only CUDA devices have TF32",
                device.type,
            )
        yield
        return
    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    memory: Any = torch.utils.deterministic  # PyTorch does not declare its flag
    fills = memory.fill_uninitialized_memory
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        matmul.allow_tf32 = precision == TF32
        cudnn.allow_tf32 = precision == TF32
        cudnn.benchmark = precision != FLOAT32
        torch.use_deterministic_algorithms(precision == FLOAT32, warn_only=True)
        memory.fill_uninitialized_memory = False
        yield
    except Exception as error:  # a GPU may fail later than the call that asked too much of it
        check_device(error)
        raise
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        memory.fill_uninitialized_memory = fills


def autocast(device: torch.device, *, bfloat16: bool) -> AbstractContextManager[None]:
    """Return the context of a forward pass and loss in bfloat16, or one that does nothing."""
    if not bfloat16:
        return nullcontext()  # even a disabled autocast takes as long as a small layer
    context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
    return context


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def check_device(error: Exception) -> None:
    """Raise FairbloomError if an error means that this process has lost its GPU.

    It is then not the fault of a client, and the run cannot continue.
    """
    if not isinstance(error, FairbloomError) and any(words in str(error) for words in LOST):
        raise FairbloomError(
            f"the GPU has stopped ({_first_line(error)}), and this process cannot use it any more."
            " Often a target is outside the model's classes, or an index outside an embedding: run"
            " once with --set device=cpu, which names it"
        ) from error


def read_scalars(scalars: Sequence[Tensor]) -> list[Any]:
    """Return tensors of shape () as numbers; a device is waited for once, not for each of them."""
    if len({scalar.device for scalar in scalars}) > 1:
        scalars = [scalar.cpu() for scalar in scalars]
    numbers: list[Any] = torch.stack([*scalars]).tolist() if scalars else []
    return numbers


def in_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64; it moves from MPS, which has no float64, to the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()

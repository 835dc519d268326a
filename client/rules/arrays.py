"""Arrays by name, as rules get and return them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fairbloom.errors import ReportableError

from ..device import in_double
from .base import Arrays


def update_of(received: Arrays, trained: Arrays) -> dict[str, Tensor]:
    """Return u_k = w − w_k in float64, of both as they travel: so it is the update that the server sees."""
    return {name: in_double(array) - in_double(trained[name]) for name, array in received.items()}


def like(array: Tensor | None, other: Tensor) -> Tensor:
    """Return an array in the dtype, and on the device, of another one.

    Zeros of its shape where there is none.
    """
    return torch.zeros_like(other) if array is None else array.to(other)


def copies(arrays: Arrays) -> dict[str, Tensor]:
    """Return arrays that a user's rule may change: copies."""
    return {name: array.clone() for name, array in arrays.items()}


def check_arrays(arrays: object, like: Arrays, what: str) -> None:
    """Raise ReportableError unless these are tensors by the names, and of the shapes, of trainable parameters."""
    if not isinstance(arrays, Mapping):
        raise ReportableError(f"{what} must be tensors by name, got {type(arrays).__name__}")
    if differing := sorted(map(str, arrays.keys() ^ like.keys())):
        raise ReportableError(
            f"{what} must have the names of the trainable parameters: {differing[0]!r} is "
            f"{'missing' if differing[0] in like else 'none of them'}"
        )
    for name, array in like.items():
        found = arrays[name]
        if (
            not isinstance(found, Tensor)
            or found.shape != array.shape
            or not found.is_floating_point()
        ):
            got = (
                f"{found.dtype} of shape {tuple(found.shape)}"
                if isinstance(found, Tensor)
                else type(found).__name__
            )
            raise ReportableError(
                f"{what} must be floats of shape {tuple(array.shape)} for {name!r}, got {got}"
            )


def check_finite(arrays: Arrays, what: str) -> None:
    """Raise ReportableError when an array is not finite."""
    for name, array in arrays.items():
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise ReportableError(f"{what} is not finite: {name!r} is not; lower learning-rate")

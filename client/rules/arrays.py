"""Helpers for the arrays that rules get and return."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fairbloom.errors import ReportableError

from ..device import in_double, read_scalars
from .base import Arrays


def update_of(received: Arrays, trained: Arrays) -> dict[str, Tensor]:
    """Return u_k = w − w_k in float64, the update that the server computes from the reply."""
    return {name: in_double(array) - in_double(trained[name]) for name, array in received.items()}


def like(array: Tensor | None, other: Tensor) -> Tensor:
    """Return an array with the dtype and device of `other`; zeros of its shape for None."""
    return torch.zeros_like(other) if array is None else array.to(other)


def copies(arrays: Arrays) -> dict[str, Tensor]:
    """Return copies of the arrays, which a user's rule may change."""
    return {name: array.clone() for name, array in arrays.items()}


def check_arrays(arrays: object, like: Arrays, what: str) -> None:
    """Raise ReportableError unless the arrays have the names and shapes of `like`."""
    if not isinstance(arrays, Mapping):
        raise ReportableError(f"{what} must be tensors by name, got {type(arrays).__name__}")
    differing = sorted(map(str, arrays.keys() ^ like.keys()))
    if differing:
        fault = "missing" if differing[0] in like else "none of them"
        raise ReportableError(
            f"{what} must have the names of the trainable parameters: {differing[0]!r} is {fault}"
        )
    for name, expected in like.items():
        array = arrays[name]
        if not isinstance(array, Tensor):
            got = type(array).__name__
        elif array.shape != expected.shape or not array.is_floating_point():
            got = f"{array.dtype} of shape {tuple(array.shape)}"
        else:
            continue
        raise ReportableError(
            f"{what} must be floats of shape {tuple(expected.shape)} for {name!r}, got {got}"
        )


def check_finite(parts: Iterable[tuple[str, Arrays]]) -> None:
    """Raise ReportableError if an array is not finite; `parts` are arrays after their description.

    The device is waited for once.
    """
    floats = []
    for what, arrays in parts:
        of_part = arrays.items()
        floats += [(what, name, array) for name, array in of_part if array.is_floating_point()]
    finite = read_scalars([torch.isfinite(array).all() for _, _, array in floats])
    for (what, name, _), is_finite in zip(floats, finite, strict=True):
        if not is_finite:
            raise ReportableError(f"{what} is not finite: {name!r} is not; lower learning-rate")

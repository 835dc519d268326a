"""What a model takes of some examples: one tensor, several by name or several in order.

PyTorch is imported late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from fairbloom.errors import ReportableError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Inputs: TypeAlias = "Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]"
"""One tensor, for model(x); by name, for model(**x); or a tuple, for model(*x). Their first
dimension: the examples."""


def tensors_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of inputs, in their order."""
    if isinstance(inputs, tuple):
        return inputs
    return tuple(inputs.values()) if isinstance(inputs, Mapping) else (inputs,)


def arguments_of(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and the named arguments that a model is called with."""
    if isinstance(inputs, tuple):
        return inputs, {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})


def map_inputs(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return the inputs with all their tensors changed."""
    if isinstance(inputs, tuple):
        return tuple(change(each) for each in inputs)
    if isinstance(inputs, Mapping):
        return {name: change(each) for name, each in inputs.items()}
    return change(inputs)


def combine_inputs(parts: Sequence[Inputs], combine: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Return inputs in which each tensor combines those of all parts, for example by torch.cat or torch.stack."""
    first = parts[0]
    if len({*map(type, parts)}) == 1 and not isinstance(first, tuple | Mapping):  # one tensor each
        return combine([*parts])  # type: ignore[list-item] # which all of them are
    for one, other in pairwise(parts):
        if names_of(one) != names_of(other):
            raise ReportableError(
                f"inputs differ in their names: some have {names_of(one)}, others"
                f" {names_of(other)}; give all clients' examples the same"
            )
    combined = [
        combine(list(each)) for each in zip(*(tensors_of(part) for part in parts), strict=True)
    ]
    if isinstance(first, Mapping):
        return dict(zip(first, combined, strict=True))
    return tuple(combined) if isinstance(first, tuple) else combined[0]


def split_inputs(inputs: Inputs, lengths: Sequence[int]) -> Sequence[Inputs]:
    """Return the inputs in parts of these numbers of examples."""
    if not isinstance(inputs, tuple | Mapping):
        return inputs.split(list(lengths))  # type: ignore[no-any-return, no-untyped-call] # as PyTorch declares it
    parts = zip(*(each.split(list(lengths)) for each in tensors_of(inputs)), strict=True)  # type: ignore[no-untyped-call]
    if isinstance(inputs, tuple):
        return list(parts)
    return [dict(zip(inputs, part, strict=True)) for part in parts]


def names_of(inputs: Inputs) -> tuple[str, ...]:
    """Return what the tensors of inputs are called: their names, their places in a tuple, or ("",) for one tensor."""
    if isinstance(inputs, tuple):
        return tuple(str(place) for place in range(len(inputs)))
    return tuple(inputs) if isinstance(inputs, Mapping) else ("",)


def count_bytes(inputs: Inputs) -> int:
    """Return the memory that inputs take."""
    return sum(each.nbytes for each in tensors_of(inputs))


def device_of(inputs: Inputs) -> torch.device:
    """Return the device that inputs are on."""
    return tensors_of(inputs)[0].device

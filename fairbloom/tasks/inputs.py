"""A model's inputs: one tensor, several by name, or several in order.

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

# One tensor, for model(x); tensors by name, for model(**x); or a tuple, for model(*x). Their first
# dimension is the examples.
Inputs: TypeAlias = "Tensor | Mapping[str, Tensor] | tuple[Tensor, ...]"


def tensors_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of inputs, in their order."""
    positional, named = arguments_of(inputs)
    return (*positional, *named.values())


def arguments_of(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and the named arguments that a model is called with."""
    if isinstance(inputs, tuple):
        return inputs, {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})


def map_inputs(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return the inputs with `change` applied to all their tensors."""
    if not isinstance(inputs, tuple | Mapping):  # of each batch
        return change(inputs)
    return _in_form_of(inputs, [change(tensor) for tensor in tensors_of(inputs)])


def _in_form_of(inputs: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """Return tensors as inputs of the same kind, under the same names."""
    if isinstance(inputs, Mapping):
        return dict(zip(inputs, tensors, strict=True))
    return tuple(tensors) if isinstance(inputs, tuple) else tensors[0]


def combine_inputs(parts: Sequence[Inputs], combine: Callable[[list[Tensor]], Tensor]) -> Inputs:
    """Return inputs with the tensors of all parts combined, for example by torch.cat."""
    first = parts[0]
    if len({*map(type, parts)}) == 1 and not isinstance(first, tuple | Mapping):  # one tensor each
        return combine([*parts])  # type: ignore[list-item] # all of them are tensors
    for one, other in pairwise(parts):
        if names_of(one) != names_of(other):
            raise ReportableError(
                f"inputs differ in their names: some have {names_of(one)}, others"
                f" {names_of(other)}; give all clients' examples the same"
            )
    together = zip(*map(tensors_of, parts), strict=True)
    return _in_form_of(first, [combine([*each]) for each in together])


def split_inputs(inputs: Inputs, lengths: list[int] | int) -> Sequence[Inputs]:
    """Return the inputs in parts of these numbers of examples, or each of at most one number."""
    parts = zip(*(tensor.split(lengths) for tensor in tensors_of(inputs)), strict=True)  # type: ignore[no-untyped-call] # as PyTorch declares it
    return [_in_form_of(inputs, part) for part in parts]


def names_of(inputs: Inputs) -> tuple[str, ...]:
    """Return the names of the tensors: keys, positions in a tuple, or ("",) for one tensor."""
    if isinstance(inputs, tuple):
        return tuple(str(place) for place in range(len(inputs)))
    return tuple(inputs) if isinstance(inputs, Mapping) else ("",)


def count_bytes(inputs: Inputs) -> int:
    """Return the bytes of inputs."""
    return sum(tensor.nbytes for tensor in tensors_of(inputs))


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; it moves to CUDA while the processor continues."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def has_room(device: torch.device, size: int) -> bool:
    """Return whether a device has room for more examples: up to half of a card's memory."""
    import torch  # imported late, see the module

    if device.type != "cuda":
        return True
    return torch.cuda.memory_allocated(device) + size <= torch.cuda.mem_get_info(device)[1] / 2


def device_of(inputs: Inputs) -> torch.device:
    """Return the device of inputs."""
    return tensors_of(inputs)[0].device

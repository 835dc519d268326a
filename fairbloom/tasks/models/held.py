"""The tensors that a model holds besides its parameters, which a trial must leave unchanged."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def has_values(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be read, compared and written one by one.

    A lazy one has none yet; sparse and nested ones have another layout.
    """
    return (
        not is_lazy(tensor)
        and not tensor.is_meta
        and not tensor.is_nested
        and tensor.layout == torch.strided
    )


def _buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own buffers that have a shape."""
    own = module.named_buffers(recurse=False)
    return {name: buffer for name, buffer in own if not is_lazy(buffer)}


def _attributes_of(module: nn.Module) -> dict[str, Any]:
    """Return a module's other attributes; PyTorch keeps parameters and buffers in dicts."""
    return {name: value for name, value in vars(module).items() if not isinstance(value, dict)}


class HeldTensors:
    """The tensors that a model's modules hold, other than parameters, as they are now.

    A module may write into one, or assign another one in its place. A lazy buffer is left out; what
    is written into a sparse tensor stays.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [*model.modules()]
        self._buffers = list(map(_buffers_of, self._modules))
        self._attributes = list(map(_attributes_of, self._modules))
        self._values: dict[Tensor, Tensor] = {}
        for held in (*self._buffers, *self._attributes):
            for value in held.values():
                if isinstance(value, Tensor) and has_values(value):
                    self._values[value] = value.detach().clone()

    def has_other_buffers(self) -> bool:
        """Return whether a buffer is another tensor now, or has other values."""
        for module, buffers in zip(self._modules, self._buffers, strict=True):
            for name, buffer in module.named_buffers(recurse=False):
                if buffer is not buffers.get(name):
                    return True
                if buffer in self._values and not torch.equal(buffer, self._values[buffer]):
                    return True
        return False

    @torch.no_grad()
    def restore(self) -> None:
        """Give the modules the tensors that they held, with their values."""
        for module, buffers in zip(self._modules, self._buffers, strict=True):
            for name, buffer in buffers.items():
                setattr(module, name, buffer)
        for module, name, before in [*self.other_attributes()]:
            setattr(module, name, before)
        for tensor, value in self._values.items():
            if not torch.equal(tensor, value):
                tensor.copy_(value)

    def other_attributes(self) -> Iterator[tuple[nn.Module, str, object]]:
        """Yield each changed attribute that is a tensor now: its module, name and first value."""
        for module, attributes in zip(self._modules, self._attributes, strict=True):
            for name, value in vars(module).items():
                before = attributes.get(name)
                if isinstance(value, Tensor) and value is not before:
                    yield module, name, before

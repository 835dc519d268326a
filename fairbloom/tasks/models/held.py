"""The tensors that a model holds besides its parameters, which a trial must leave unchanged."""

from collections.abc import Iterator

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


class HeldTensors:
    """The tensors that a model's modules hold, other than parameters, as they are now.

    A module may write into one, or assign another one in its place. A lazy buffer is left out; what
    is written into a sparse tensor stays.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [*model.modules()]
        self._buffers = [
            {
                name: buffer
                for name, buffer in module.named_buffers(recurse=False)
                if not is_lazy(buffer)
            }
            for module in self._modules
        ]
        self._attributes = [
            {name: value for name, value in vars(module).items() if not isinstance(value, dict)}
            for module in self._modules
        ]
        self._values = {
            value: value.detach().clone()
            for values in (*self._buffers, *self._attributes)
            for value in values.values()
            if isinstance(value, Tensor) and has_values(value)
        }

    def has_other_buffers(self) -> bool:
        """Return whether a buffer is another tensor now, or has other values."""
        return any(
            buffer is not buffers.get(name)
            or (buffer in self._values and not torch.equal(buffer, self._values[buffer]))
            for module, buffers in zip(self._modules, self._buffers, strict=True)
            for name, buffer in module.named_buffers(recurse=False)
        )

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

"""Dropout of many clients at once, with masks that each client draws from its own generator.

PyTorch's vmap would draw masks by the place of a client in its block, and so by the memory that is
free.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# The functions of dropout, with whether they draw a number for each channel, not for each element.
DROPOUTS: dict[Callable[..., Any], bool] = {
    functional.dropout: False,
    torch.dropout: False,
    functional.dropout1d: True,
    functional.dropout2d: True,
    functional.dropout3d: True,
}


class Drop(NamedTuple):
    """A call of dropout: its mask's shape and dtype for a few examples, and the share it keeps."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kept: float


class DropoutMode(TorchFunctionMode):
    """Inside, `replace` computes the calls of dropout that would draw.

    It is called with the inputs, the probability, and whether channels are dropped.
    """

    def __init__(self, replace: Callable[[Tensor, float, bool], Tensor]) -> None:
        super().__init__()
        self._replace = replace

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch, or replace it."""
        given = kwargs or {}
        if func not in DROPOUTS:
            return func(*args, **given)
        inputs, probability, training = _arguments(*args, **given)
        if not training or probability == 0.0:
            return inputs
        return self._replace(inputs, probability, DROPOUTS[func])


def _arguments(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,  # torch.dropout's name of it
) -> tuple[Tensor, float, bool]:
    return input, p, training if train is None else train


def record_drops(into: list[Drop]) -> DropoutMode:
    """Return a context that adds the calls of dropout to a list, and drops nothing."""

    def record(inputs: Tensor, probability: float, channels: bool) -> Tensor:
        shape = (*inputs.shape[:2], *[1] * (inputs.dim() - 2)) if channels else (*inputs.shape,)
        into.append(Drop(shape, inputs.dtype, 1.0 - probability))
        return inputs

    return DropoutMode(record)


def with_masks(masks: Iterator[Tensor]) -> DropoutMode:
    """Return a context in which each call of dropout takes the next mask."""
    # Under autocast, the inputs may be in bfloat16, and stay so.
    return DropoutMode(lambda inputs, probability, channels: inputs * next(masks).to(inputs.dtype))


def draw_masks(
    drops: Sequence[Drop], generators: Sequence[torch.Generator], sizes: Sequence[int]
) -> list[Tensor]:
    """Return the mask of each call of dropout, shape (k, b, …), for a step of k clients.

    Client i draws the masks of its `sizes[i]` examples from `generators[i]`, in the order of the
    calls, as it does on the CPU when it trains by itself.
    """
    masks = []
    for drop in drops:
        mask = torch.zeros(
            (len(sizes), max(sizes), *drop.shape[1:]), dtype=drop.dtype, device=generators[0].device
        )
        for row, (generator, size) in enumerate(zip(generators, sizes, strict=True)):
            mask[row, :size].bernoulli_(drop.kept, generator=generator)
        masks.append(mask.div_(drop.kept) if drop.kept else mask)
    return masks

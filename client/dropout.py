"""Dropout, with masks that each client draws by its own seed, by itself or with others at once.

PyTorch's vmap would draw masks by the place of a client in its block, and so by the memory that is
free. On the processor each client has a generator. On a card, where such draws would cost a launch
a client, masks are a function of numbers that are counted.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fairbloom.tasks.inputs import move

# Kinds of devices on which masks are counted.
COUNTED = ("cuda",)

# Most calls of dropout in a step that have masks of their own.
MOST_CALLS = 2**10

# The values of the 16 bits that decide about an element.
VALUES = 2**16

# The functions of dropout. If they draw a number for each channel, not for each element: the number
# of dimensions of inputs without a dimension of examples, 0 if they take none.
DROPOUTS: dict[Callable[..., Any], int | None] = {
    functional.dropout: None,
    torch.dropout: None,
    functional.dropout1d: 2,
    functional.dropout2d: 0,
    functional.dropout3d: 4,
}

# The module of PyTorch that computes a part of a model anew on its way back.
CHECKPOINT = "torch.utils.checkpoint"


class Drop(NamedTuple):
    """A call of dropout: its mask's shape and dtype for a few examples, and the share it keeps."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kept: float


class DropoutMode(TorchFunctionMode):
    """Inside, `replace` computes the calls of dropout that would draw.

    It is called with the inputs and the call; if it returns None, PyTorch computes the call.
    """

    def __init__(self, replace: Callable[[Tensor, Drop], Tensor | None]) -> None:
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
        inputs, probability, training, inplace = _arguments(*args, **given)
        if not training or probability == 0.0:
            return inputs
        unbatched = DROPOUTS[func]
        shape = inputs.shape
        if unbatched is not None:
            drawn = 1 if inputs.dim() == unbatched else 2
            shape = shape[:drawn] + (1,) * (inputs.dim() - drawn)
        dropped = self._replace(inputs, Drop(tuple(shape), inputs.dtype, 1.0 - probability))
        if dropped is None:
            return func(*args, **given)
        return inputs.copy_(dropped) if inplace else dropped


def _arguments(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,  # torch.dropout's name of it
) -> tuple[Tensor, float, bool, bool]:
    return input, p, training if train is None else train, inplace


def is_computed_anew() -> bool:
    """Return whether a part of a model that is computed now is computed again on its way back."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != CHECKPOINT:
        frame = frame.f_back
    return frame is not None or not torch.is_grad_enabled()


def record_drops(into: list[Drop]) -> DropoutMode:
    """Return a context that adds the calls of dropout to a list, and drops nothing."""

    def record(inputs: Tensor, drop: Drop) -> Tensor:
        into.append(drop)
        return inputs

    return DropoutMode(record)


def with_masks(masks: Iterator[Tensor]) -> DropoutMode:
    """Return a context in which each call of dropout takes the next mask."""
    # Under autocast, the inputs may be in bfloat16, and stay so.
    return DropoutMode(lambda inputs, _: inputs * next(masks).to(inputs.dtype))


class Draws:
    """What the dropout of clients draws, each by its own seed, from PyTorch's generators.

    `states` are the tensors that a step changes.
    """

    states: Sequence[Tensor] = ()

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self, seeds: Sequence[int]) -> None:
        """Prepare the first step of clients with these seeds, random numbers below 2**63."""
        self._generators = [torch.Generator(self._device).manual_seed(seed) for seed in seeds]

    def masks(self, drops: Sequence[Drop], sizes: Sequence[int]) -> list[Tensor]:
        """Return the mask of each call of dropout, shape (k, b, …), for the next step.

        Client i, one of the first k, has `sizes[i]` examples, and draws as it does by itself.
        """
        masks = []
        for drop in drops:
            shape = (len(sizes), max(sizes), *drop.shape[1:])
            mask = torch.zeros(shape, dtype=drop.dtype, device=self._device)
            for row, (generator, size) in enumerate(zip(self._generators, sizes, strict=False)):
                mask[row, :size].bernoulli_(drop.kept, generator=generator)
            masks.append(mask.div_(drop.kept) if drop.kept else mask)
        return masks

    def for_one(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass of a client's next step by itself."""
        return nullcontext()  # in which it draws from the global generator, seeded alike


class CountedDraws(Draws):
    """Masks that are a function of a client's seed, its step, the call and the place in the mask.

    The step is counted on the device, so that a recorded step draws other masks each time.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self._keys = torch.zeros(clients, dtype=torch.int64, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self.states = [self._step]

    def begin(self, seeds: Sequence[int]) -> None:
        """Prepare the first step; see Draws."""
        keys = torch.tensor(seeds, dtype=torch.int64) | 1
        self._keys[: len(seeds)] = move(keys, self._keys.device)
        self._step.zero_()

    def masks(self, drops: Sequence[Drop], sizes: Sequence[int]) -> list[Tensor]:
        """Return the masks of a step; see Draws."""
        masks = []
        for call, drop in enumerate(drops):
            widest = drop._replace(shape=(max(sizes), *drop.shape[1:]))
            masks.append(self._mask(call, widest, len(sizes)))
        if masks:
            self._step += 1
        return masks

    @contextmanager
    def for_one(self) -> Iterator[None]:
        """Give the calls of dropout of a client's step their masks; see Draws."""
        calls = list[Drop]()

        def replace(inputs: Tensor, drop: Drop) -> Tensor | None:
            # On the way back it gets the same numbers only from a generator, which is set back.
            if inputs.is_nested or not 0.0 <= drop.kept <= 1.0 or is_computed_anew():
                return None
            mask = self._mask(len(calls), drop, 1)
            calls.append(drop)
            return inputs * mask[0]

        with DropoutMode(replace):
            yield
        if calls:
            self._step += 1

    def _mask(self, call: int, drop: Drop, clients: int) -> Tensor:
        """Return the masks of the first clients, shape (clients, *drop.shape)."""
        size = math.prod(drop.shape)
        first = (self._step * MOST_CALLS + call) << 32
        counters = torch.arange(-(-size // 4), device=first.device) + first
        bits = squares(counters, self._keys[:clients].unsqueeze(1)).view(torch.int16)
        values = math.ceil(drop.kept * VALUES)
        kept = bits[:, :size] < values - VALUES / 2
        mask = kept.to(drop.dtype).view(clients, *drop.shape)
        return mask.mul_(VALUES / values) if values else mask


def make_draws(clients: int, device: torch.device) -> Draws:
    """Return the draws of so many clients on a device."""
    counted = device.type in COUNTED
    return CountedDraws(clients, device) if counted else Draws(device)


def squares(counters: Tensor, keys: Tensor) -> Tensor:
    """Return 64 random bits for each counter and key, all of torch.int64.

    Source: Widynski, "Squares: A Fast Counter-Based RNG" (2020), with five rounds.

    Departures: the paper chooses keys by their digits; here a key is a random odd number.
    """
    once = counters * keys  # modulo 2**64, as all products and sums here
    twice = once + keys
    x = once
    for added in (once, twice, once):
        x = _rotate(x * x + added)
    x = x * x + twice
    turned = _rotate(x)
    return x ^ _upper(turned * turned + once)


def _rotate(x: Tensor) -> Tensor:
    """Swap the two halves of 64 bits."""
    return _upper(x) | (x << 32)


def _upper(x: Tensor) -> Tensor:
    """Return the upper 32 of 64 bits."""
    return (x >> 32) & 0xFFFFFFFF

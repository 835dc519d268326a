"""Models of users that draw random numbers, or look elsewhere, when they are made."""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

# What differs between processes: the order of a set, or the time. Tests change it.
ELSEWHERE = [1.0]

WIDTH = 64


class Features(nn.Module):
    """Random Fourier features in attributes: no state_dict has them."""

    omega: Tensor
    phase: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        omega, phase = self.draw(inputs)
        self.keep("omega", torch.as_tensor(omega, dtype=torch.float32))
        self.keep("phase", torch.as_tensor(phase, dtype=torch.float32))
        self.head = nn.Linear(WIDTH, outputs)

    def draw(self, inputs: int) -> tuple[object, object]:
        """Return frequencies, shape (inputs, WIDTH), and phases, shape (WIDTH,)."""
        return np.random.randn(inputs, WIDTH), np.random.uniform(0.0, 6.3, WIDTH)

    def keep(self, name: str, value: Tensor) -> None:
        """Store a tensor as an attribute."""
        setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cos(x.flatten(1) @ self.omega + self.phase))  # type: ignore[no-any-return]


class Buffers(Features):
    """The same as buffers that are not persistent."""

    def keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)


class Frozen(Features):
    """The same as frozen parameters."""

    def keep(self, name: str, value: Tensor) -> None:
        setattr(self, name, nn.Parameter(value, requires_grad=False))


class ByPython(Features):
    """Features of Python's generator."""

    def draw(self, inputs: int) -> tuple[object, object]:
        return [[random.gauss() for _ in range(WIDTH)] for _ in range(inputs)], [0.0] * WIDTH


class Unseeded:
    """Features of a generator without a seed: mixed into one of the others."""

    def draw(self, inputs: int) -> tuple[object, object]:
        generator = np.random.default_rng()
        return generator.normal(size=(inputs, WIDTH)), generator.normal(size=WIDTH)


class UnseededAttributes(Unseeded, Features):
    pass


class UnseededBuffers(Unseeded, Buffers):
    pass


class UnseededParameters(Unseeded, Frozen):
    pass


class UnseededNumber(nn.Linear):
    """A number of which PyTorch knows nothing, from a generator of its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = random.Random().random()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * self.scale


class Placed(nn.Linear):
    """What follows the process in its outputs alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * ELSEWHERE[0]


class PlacedBuffer(nn.Linear):
    """What follows the process in a buffer, which changes training alone."""

    scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("scale", torch.tensor(ELSEWHERE), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * (self.scale if self.training else 1.0)


class Hashed(nn.Module):
    """Columns in the order of a set, which follows PYTHONHASHSEED."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.order = [int(name) for name in {str(place) for place in range(inputs)}]
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, self.order])  # type: ignore[no-any-return]


SAME: tuple[Callable[..., nn.Module], ...] = (Features, Buffers, Frozen, ByPython)

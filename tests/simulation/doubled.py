"""A user's task in float64, in which engines agree to the last digits, and models for it."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fairbloom.tasks import TASKS, Examples, Setup, Splits, Task


def doubled(setup: Setup, *, apart: bool = False) -> Task:
    """The digits in float64, each client with tensors of its own where they are to be `apart`."""
    task = TASKS["digits"].load(setup.model_copy(update={"model": setup.model or "logistic"}), {})
    shared = task.splits(task.clients[0]).train.inputs.double()

    def splits(client: str) -> Splits:
        return Splits(*(own(part) for part in task.splits(client)))

    def own(part: Examples) -> Examples:
        return Examples(part[:][0].double(), part[:][1]) if apart else replace(part, inputs=shared)

    return replace(task, model=lambda: task.model().double(), splits=splits)


class Recurrent(nn.Module):
    """A recurrence over the rows of an image, LayerNorm and an embedding of the brightest column."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.read, self.go_on, self.norm = nn.Linear(8, 12), nn.Linear(12, 12), nn.LayerNorm(12)
        self.column, self.last = nn.Embedding(8, 12), nn.Linear(12, outputs)

    def forward(self, images: Tensor) -> Tensor:
        state = torch.zeros(len(images), 12, dtype=images.dtype)
        for row in images.squeeze(1).unbind(1):
            state = torch.tanh(self.read(row) + self.go_on(state))
        brightest = images.sum(dim=(1, 2)).argmax(dim=1)
        return self.last(self.norm(state) + self.column(brightest))  # type: ignore[no-any-return]


class Grouped(nn.Module):
    """A residual convolution with GroupNorm and a scale that is a single number."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.second, self.scale = nn.Conv2d(4, 4, 3, padding=1), nn.Parameter(torch.tensor(0.5))
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        seen = torch.tanh(self.norm(self.first(images)))
        pooled = nn.functional.avg_pool2d(seen + self.scale * self.second(seen), 2)
        return self.last(pooled.flatten(1))  # type: ignore[no-any-return]


class Contrasted(nn.Module):
    """Each example is seen in contrast to the mean of its batch."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return self.last(flat - flat.mean(0))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Control flow on data."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.last(images.flatten(1))
        return outputs if outputs.sum() > 0 else 2.0 * outputs  # type: ignore[no-any-return]

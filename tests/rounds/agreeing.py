"""A user's small task in float64, and a model that draws."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fairbloom.tasks import TASKS, Examples, Setup, Task

FEW = 31
"""So many examples a client has at most."""


def task(setup: Setup) -> Task:
    there = TASKS["digits"].load(setup.model_copy(update={"model": setup.model or "logistic"}), {})

    def few(part: Examples) -> Examples:
        inputs, targets = part[slice(0, FEW)]
        return Examples(inputs.double(), targets)

    return replace(
        there,
        model=lambda: there.model().double(),
        splits=lambda client: there.splits(client).map(few),
    )


def grouped(setup: Setup) -> Task:
    """Return the same task, whose examples are grouped in two ways by what is in a pixel."""
    there = task(setup)

    def group(part: Examples) -> Examples:
        pixels = part.inputs.flatten(1)
        places = torch.stack([(pixels[:, 20] > 0.5).long(), (pixels[:, 42] * 3).long().clamp(0, 2)], dim=1)
        return replace(part, groups=places)

    return replace(
        there,
        splits=lambda client: there.splits(client).map(group),
        groupings={"side": ("left", "right"), "ink": ("none", "some", "much")},
    )


def even(setup: Setup) -> Task:
    """Return a task of two classes with two groups: whether a digit is even, by whether a pixel is dark."""
    there = grouped(setup)

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()

    def of_two(part: Examples) -> Examples:
        return replace(part, targets=1 - part.targets % 2)

    return replace(there, model=model, splits=lambda client: there.splits(client).map(of_two), classes=2)


class Dropping(nn.Module):
    """A linear layer after dropout."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.drop(torch.flatten(images, 1)))
        return outputs

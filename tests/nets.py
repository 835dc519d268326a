"""A user's tasks and models for whole runs: digits in float64, groups, frozen layers, buffers, odd
models."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fairbloom.tasks import TASKS, Examples, Setup, Splits, Task
from fairbloom.tasks.datasets.digits import SIDE
from fairbloom.tasks.task import AnyExamples

# Tasks --------------------------------------------------------------------------------------------


def even_digits(setup: Setup) -> Task:
    """Return the task of even and odd digits, grouped by the image half with more ink."""
    digits = TASKS["digits"].load(setup.model_copy(update={"model": "logistic"}), {})

    def model() -> nn.Module:
        torch.manual_seed(setup.seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))

    def group(part: AnyExamples) -> Examples:
        inputs, targets = part[slice(None)]
        if not isinstance(inputs, Tensor):
            raise TypeError(f"digits are one tensor, got {type(inputs).__name__}")
        columns = inputs.reshape(-1, SIDE, SIDE).sum(dim=1)
        sides = (columns[:, SIDE // 2 :].sum(dim=1) > columns[:, : SIDE // 2].sum(dim=1)).long()
        return Examples(inputs, 1 - targets % 2, groups=sides[:, None])

    return replace(
        digits,
        model=model,
        splits=lambda client: digits.splits(client).map(group),
        classes=2,
        class_names=("odd", "even"),
        groupings={"side": ("left", "right")},
    )


def doubled(setup: Setup, *, apart: bool = False) -> Task:
    """The digits in float64, in which engines agree to the last digits; if `apart`, clients share
    no tensor."""
    task = digits(setup)
    shared = task.splits(task.clients[0]).train.inputs.double()

    def splits(client: str) -> Splits:
        return task.splits(client).map(
            lambda part: in_doubles(part) if apart else replace(part, inputs=shared)
        )

    return replace(task, model=lambda: task.model().double(), splits=splits)


def few(setup: Setup) -> Task:
    """The same with at most 31 examples a client, in tensors of its own."""
    return in_float64(digits(setup), 31)


def even(setup: Setup) -> Task:
    """The task of the checks of methods that compare groups, in float64, with at most 31
    examples."""
    return in_float64(even_digits(setup), 31)


def digits(setup: Setup) -> Task:
    return TASKS["digits"].load(setup.model_copy(update={"model": setup.model or "logistic"}), {})


def in_float64(task: Task, few: int) -> Task:
    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            return task.model().double()

    return replace(
        task,
        model=model,
        splits=lambda client: task.splits(client).map(lambda part: in_doubles(part, slice(0, few))),
    )


def in_doubles(part: AnyExamples, rows: slice = slice(None)) -> Examples:
    assert isinstance(part, Examples)
    inputs, targets = part[rows]
    return Examples(
        inputs.double(), targets, groups=None if part.groups is None else part.groups[rows]
    )


# Models -------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """Two frozen layers with trained adapters of rank 2, a frozen BatchNorm, whose statistics
    change, and a head."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 96).requires_grad_(False)
        self.second = nn.Linear(96, 96).requires_grad_(False)
        self.norm = nn.BatchNorm1d(96).requires_grad_(False)
        self.down = nn.Linear(96, 2, bias=False)
        self.up = nn.Linear(2, 96, bias=False)
        self.head = nn.Linear(96, outputs)
        nn.init.zeros_(self.up.weight)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(images.flatten(1))))
        outputs: Tensor = self.head(torch.tanh(self.second(hidden) + self.up(self.down(hidden))))
        return outputs


class Plain(Adapted):
    """The same without BatchNorm, so that clients can be stacked."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.norm = nn.Identity()  # type: ignore[assignment]


class Following(Plain):
    """One whose frozen layer follows another one as it is trained."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.second.bias.mul_(0.9)
        return super().forward(images)


class Normed(nn.Sequential):
    """A model with BatchNorm's buffers: floats that are averaged, and a count of batches."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))


class Dropping(nn.Sequential):
    """A linear layer after dropout, in training alone."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(inputs, outputs))


class Contrasted(nn.Module):
    """Each example is seen in contrast to the mean of its batch."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return self.last(flat - flat.mean(0))  # type: ignore[no-any-return]


class Branching(Contrasted):
    """Control flow on data."""

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.last(images.flatten(1))
        return outputs if outputs.sum() > 0 else 2.0 * outputs  # type: ignore[no-any-return]

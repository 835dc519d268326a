"""Tasks and models of users that are unusual: each is named by its import string."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot

from fairbloom.tasks import Examples, Setup, Splits, Task


def task(targets: Callable[[Tensor], Tensor], outputs: int, loss: Any) -> Task:
    """Return three clients with 40 examples of four numbers."""

    def splits(client: str) -> Splits:
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(ord(client)))
        y = targets(x)
        return Splits(train=Examples(x[:30], y[:30]), test=Examples(x[30:], y[30:]))

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(4, outputs)

    return Task(("a", "b", "c"), model, loss, splits)


def three(x: Tensor) -> Tensor:
    return (x[:, 0].abs() * 2).long() % 3


def of_logit(outputs: Tensor, targets: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(outputs[:, 0], targets.reshape(-1), reduction="none")


def one_logit(setup: Setup) -> Task:
    return task(lambda x: (x[:, 0] > 0).float(), 1, of_logit)


def column(setup: Setup) -> Task:
    return task(lambda x: (x[:, :1] > 0).float(), 1, of_logit)


def quantity(setup: Setup) -> Task:
    return task(lambda x: x[:, 0], 1, lambda o, t: mse_loss(o[:, 0], t, reduction="none"))


def wide(setup: Setup) -> Task:
    return task(
        lambda x: three(x)[:, None], 3, lambda o, t: cross_entropy(o, t[:, 0], reduction="none")
    )


def ignored(setup: Setup) -> Task:
    return task(
        lambda x: torch.where(x[:, 1] > 0.5, -100, three(x)),
        3,
        partial(cross_entropy, reduction="none"),
    )


def soft(setup: Setup) -> Task:
    return task(
        lambda x: 0.8 * one_hot(three(x), 3).float() + 0.2 / 3,
        3,
        lambda o, t: cross_entropy(o, t, reduction="none"),
    )


def soft_partial(setup: Setup) -> Task:
    return task(
        lambda x: 0.8 * one_hot(three(x), 3).float() + 0.2 / 3,
        3,
        partial(cross_entropy, reduction="none"),
    )


def nan_loss(setup: Setup) -> Task:
    return task(three, 3, lambda o, t: cross_entropy(o, t, reduction="none") * float("nan"))


class CausalMask(nn.Module):
    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, outputs)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1)) + 0 * self.mask.softmax(-1).sum()  # type: ignore[operator, no-any-return]


class BatchAlone(nn.Sequential):
    def __init__(self, outputs: int, inputs: int) -> None:
        norm = nn.BatchNorm1d(16, track_running_stats=False)
        super().__init__(nn.Flatten(), nn.Linear(inputs, 16), norm, nn.Linear(16, outputs))


class Expanded(nn.Module):
    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, outputs)
        self.register_buffer("weights", torch.ones(1).expand(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1))  # type: ignore[no-any-return]

"""A regression task as a user writes one, with two measures of its own."""

from typing import Annotated

import torch
from torch import nn

from fairbloom import Score
from fairbloom.protocol.parameters import Range
from fairbloom.tasks import Examples, Setup, Splits, Task

TOWNS = tuple(f"town-{k}" for k in range(5))


def mae(outputs, targets):
    return (outputs.squeeze(1) - targets).abs()


def r2(outputs, targets):
    return (
        1.0
        - (outputs.squeeze(1) - targets).square().sum() / (targets - targets.mean()).square().sum()
    )


def loss(outputs, targets):
    return (outputs.squeeze(1) - targets).square()


def prices(setup: Setup, *, noise: Annotated[float, Range("[0, inf)")] = 0.1) -> Task:
    """Prices of houses in five towns.

    Parameters
    ----------
    noise : float, default 0.1
        How much the price of a house varies.
    """

    def splits(town):
        number = TOWNS.index(town)
        generator = torch.Generator().manual_seed(100 * setup.seed + number)
        houses = torch.randn(40, 3, generator=generator)
        values = houses @ torch.tensor([1.0, -2.0, 0.5 * number]) + noise * torch.randn(
            40, generator=generator
        )
        return Splits(Examples(houses[:30], values[:30]), Examples(houses[30:], values[30:]))

    def model():
        torch.manual_seed(setup.seed)
        return nn.Linear(3, 1)

    scores = {Score("mae", higher_is_better=False): mae, Score("r2"): r2}
    return Task(clients=TOWNS, model=model, loss=loss, splits=splits, scores=scores)


def unmeasured(setup: Setup) -> Task:
    """The same, with a measure that means nothing in the second town."""
    plain = prices(setup)
    there = plain.splits("town-1").test.targets

    def some(outputs, targets):
        return float("nan") if torch.equal(targets, there) else mae(outputs, targets)

    return Task(
        plain.clients, plain.model, loss, plain.splits, {Score("mae", higher_is_better=False): some}
    )

"""Tasks as a user writes them; they are named by import strings."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.tasks import Examples, Score, Setup, Splits, Task
from fairbloom.tasks.measures import MAE, R2, absolute_error, r2

# The clients of the requested splits.
asked: list[str] = []


def line(setup: Setup, *, noise: float = 0.1, slope: int = 2, bent: bool = False) -> Task:
    """Points on a line, a line for each client.

    Parameters
    ----------
    noise : float at least 0, default 0.1
        Standard deviation of the targets.
    slope : int, default 2
        Slope of the line.
    bent : bool, default False
        Whether it is a parabola.
    """

    def splits(client: str) -> Splits:
        asked.append(client)
        number = int(client.removeprefix("line-"))
        random = np.random.default_rng([setup.seed, number])
        x = torch.from_numpy(random.normal(size=(40, 1))).float()
        targets = slope * (x**2 if bent else x)[:, 0] + number
        targets += noise * torch.from_numpy(random.normal(size=40)).float()
        return Splits(Examples(x[:30], targets[:30]), Examples(x[30:], targets[30:]))

    def model() -> nn.Module:
        torch.manual_seed(setup.seed)
        return nn.Linear(1, 1)

    def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets) ** 2

    names = tuple(f"line-{number}" for number in range(setup.clients))
    return Task(names, model, squared_error, splits, scores={MAE: absolute_error, R2: r2})


def recall(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the second class that is found."""
    return (outputs.argmax(dim=1)[targets == 1] == 1).double().mean().item()


class Wards:
    """Two clouds of points for each ward; recall is what counts.

    Parameters
    ----------
    apart
        How far the clouds are from each other.
    """

    clients = ("east", "north", "west")
    scores: Mapping[Score, object] = {Score("recall", percent=True): recall}

    def __init__(self, setup: Setup, *, apart: float = 2.0) -> None:
        self.seed = setup.seed
        self.apart = apart

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Linear(2, 2)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    def splits(self, client: str) -> Splits:
        random = np.random.default_rng([self.seed, len(client)])
        targets = torch.arange(40) % 2
        inputs = (
            torch.from_numpy(random.normal(size=(40, 2))).float() + self.apart * targets[:, None]
        )
        return Splits(Examples(inputs[:30], targets[:30]), Examples(inputs[30:], targets[30:]))


def nothing(setup: Setup) -> None:
    """Return no task."""


def without_default(setup: Setup, *, share: float) -> None:
    """Ask for what no run config has."""


def of_lists(setup: Setup, *, sizes: list[int] = []) -> None:  # noqa: B006 (a user's mistake)
    """Ask for what no run config can carry."""


number = 3

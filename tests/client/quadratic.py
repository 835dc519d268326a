"""A user's task with quadratic losses: F_k(z) = ½ Σ a_k (z − b_k)², in float64, z in two
arrays of a model."""

import numpy as np
import torch
from torch import Tensor, nn

from fairbloom.protocol.scores import Score
from fairbloom.tasks import Examples, Setup, Splits, Task

COUNTS = {"a": 1, "b": 3, "c": 2}
CURVATURES = {"a": (1.0, 4.0, 0.5), "b": (2.0, 0.5, 3.0), "c": (0.7, 1.0, 1.0)}
MINIMA = {"a": (1.0, -2.0, 0.5), "b": (-3.0, 1.0, 2.0), "c": (5.0, 0.0, -4.0)}


class Point(nn.Module):
    """Two arrays, whatever the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.x, self.bias[None]]).expand(len(inputs), 3)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (targets[:, :3] * (outputs - targets[:, 3:]) ** 2).sum(dim=1)


MAE = Score("mae", higher_is_better=False)


def distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets[:, 3:]).abs().mean(dim=1)


def task(setup: Setup) -> Task:
    def splits(client: str) -> Splits:
        count = COUNTS[client]
        targets = torch.tensor((*CURVATURES[client], *MINIMA[client]), dtype=torch.float64).expand(
            count, 6
        )
        part = Examples(torch.zeros(count, 1, dtype=torch.float64), targets.clone())
        return Splits(part, part)

    return Task(tuple(COUNTS)[: setup.clients or 2], Point, loss, splits, scores={MAE: distance})


def minimiser(weights: dict[str, float]) -> list[float]:
    """Return where the weighted sum of the losses is least."""
    curvatures = sum(weight * np.array(CURVATURES[client]) for client, weight in weights.items())
    pulled = sum(
        weight * np.array(CURVATURES[client]) * MINIMA[client] for client, weight in weights.items()
    )
    return list(pulled / curvatures)


def many(setup: Setup) -> Task:
    """Return a task of `setup.clients` clients; their curvatures and minima change steadily."""

    def splits(client: str) -> Splits:
        number = int(client)
        targets = torch.tensor(
            [[1.0, 2.0, 0.5, 0.001 * number, 0.5, -0.002 * number]], dtype=torch.float64
        )
        part = Examples(torch.zeros(1, 1, dtype=torch.float64), targets)
        return Splits(part, part)

    return Task(
        tuple(f"{number:04}" for number in range(setup.clients)),
        Point,
        loss,
        splits,
        scores={MAE: distance},
    )

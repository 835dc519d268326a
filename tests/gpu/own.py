"""A task and models that bring a card to its limits."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairbloom.tasks import Examples, Setup, Splits, Task

CLASSES = 3
FEATURES = 8
ROWS = 20


def wrong_first(setup: Setup) -> Task:
    """The first client, at which a trial step is taken, has a target outside the classes."""
    return _with_wrong_targets(setup, "client-0")


def wrong_last(setup: Setup) -> Task:
    """The last client has a target outside the classes."""
    return _with_wrong_targets(setup, f"client-{setup.clients - 1}")


def _with_wrong_targets(setup: Setup, wrong: str) -> Task:
    def splits(client: str) -> Splits:
        random = torch.Generator().manual_seed(0)
        inputs = torch.randn(ROWS, FEATURES, generator=random)
        targets = torch.randint(CLASSES, (ROWS,), generator=random)
        if client == wrong:
            targets[0] = 99
        return Splits(Examples(inputs, targets), Examples(inputs, targets.clamp(max=CLASSES - 1)))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    names = tuple(f"client-{number}" for number in range(setup.clients))
    return Task(names, lambda: nn.Linear(FEATURES, CLASSES), loss, splits)


def wide(inputs: int, outputs: int) -> nn.Module:
    """A model of 16 MB."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, 2000),
        nn.ReLU(),
        nn.Linear(2000, 2000),
        nn.ReLU(),
        nn.Linear(2000, outputs),
    )


def too_wide(inputs: int, outputs: int) -> nn.Module:
    """A model of 400 MB."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 1_300_000), nn.Linear(1_300_000, outputs))


def dropping(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network with dropout between two convolutions and before its last layer."""
    return _convolutions(shape, outputs, nn.Dropout(0.25))


def group_normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return _convolutions(shape, outputs, nn.GroupNorm(2, 16))


def batch_normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network that mixes the examples of a batch."""
    return _convolutions(shape, outputs, nn.BatchNorm2d(16))


def _convolutions(shape: tuple[int, ...], outputs: int, between: nn.Module) -> nn.Module:
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        between,
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5 if isinstance(between, nn.Dropout) else 0.0),
        nn.Linear(16 * (height // 2) * (width // 2), outputs),
    )

"""Small models for images of one channel."""

from collections.abc import Callable

import torch
from torch import nn


def logistic(side: int, classes: int) -> nn.Module:
    """Return multinomial logistic regression on the pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, classes))


def mlp(side: int, classes: int) -> nn.Module:
    """Return a perceptron with two hidden layers of 200 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(side * side, 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def cnn(side: int, classes: int) -> nn.Module:
    """Return two convolutions of 16 and 32 channels, each with pooling, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, classes),
    )


MODELS: dict[str, Callable[[int, int], nn.Module]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn}


def seeded(name: str, side: int, classes: int, seed: int) -> nn.Module:
    """Return the model `name`, initialised as PyTorch does, from `seed`; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](side, classes)

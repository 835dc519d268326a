"""The task of methods that compare groups: digits that are even or odd, in two groups by how much ink they have."""

from dataclasses import replace

import torch
from torch import nn

from fairbloom.protocol.streams import seed_of
from fairbloom.tasks import Examples, Setup, Task
from fairbloom.tasks.datasets.digits import load as load_digits


def load(setup: Setup) -> Task:
    """Return the task; the fainter half of the digits is the first group."""
    digits = load_digits(
        replace(setup, model=setup.model or "logistic"), rotated_clients=0, noisy_clients=0, dimmed_clients=0
    )

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(setup.seed, "model"))
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    def of_two(part: Examples) -> Examples:
        inputs, targets = part[slice(None)]
        ink = inputs.flatten(1).mean(dim=1)
        return Examples(inputs, targets % 2, groups=(ink > INK).long()[:, None])

    return replace(
        digits,
        model=model,
        splits=lambda client: digits.splits(client).map(of_two),
        classes=2,
        groupings={"ink": ("faint", "strong")},
        group_scores={},
    )


INK = 0.305
"""The mean of the pixels of a digit, from 0 to 1, about which half of them have more."""

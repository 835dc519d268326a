"""Synthetic(α, β): devices that differ in their models by α and in their inputs by β.

Source: Li et al., Federated Optimization in Heterogeneous Networks (FedProx), MLSys 2020, section
5.1, with 30 devices; Li et al., Fair Resource Allocation in Federated Learning (q-FFL), ICLR 2020,
with 100. Both papers' programs draw the data set, and so does this: there is nothing to download.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.protocol.streams import generator

from ..partition import number_clients, split, splits_of
from ..task import Setup, Splits, Task
from .classification import classify, numbered

INPUTS = 60
CLASSES = 10

# A device has 50 examples plus a log-normal number, rounded down.
MIN_EXAMPLES = 50
MEAN_LOG = 4.0
DEVIATION_LOG = 2.0

# Standard deviations of the inputs about their means: the variance of the jth is j^(−1.2).
DEVIATIONS = np.arange(1, INPUTS + 1) ** -0.6


class SyntheticDevice(NamedTuple):
    """A device's distribution: the mean of its inputs, (60,), and its model W (60, 10), b (10,)."""

    mean: NDArray[np.float64]
    W: NDArray[np.float64]
    b: NDArray[np.float64]


def load(setup: Setup, *, alpha: float, beta: float) -> Task:
    """Return the task; a device's examples depend on the seed, not on the number of devices.

    W and b of device k are drawn from N(u_k, 1), and the means of its inputs from N(B_k, 1): alpha
    is the standard deviation of u_k, beta that of B_k.
    """
    names = number_clients(setup.clients, "device")
    places = {name: place for place, name in enumerate(names)}

    @cache
    def splits(client: str) -> Splits:
        inputs, targets = draw_examples(setup.seed, places[client], alpha, beta)
        parts = split(np.arange(len(targets)), setup, client)
        single = torch.from_numpy(inputs.astype(np.float32))
        return splits_of(single, torch.from_numpy(targets), parts)

    return classify(setup, names, (INPUTS,), numbered(CLASSES), splits)


def draw_examples(
    seed: int, place: int, alpha: float, beta: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a device's inputs, shape (n, 60), and classes, shape (n,): the highest x W + b."""
    device = draw_device(seed, place, alpha, beta)
    random = generator(seed, "synthetic examples", place)
    count = MIN_EXAMPLES + int(random.lognormal(MEAN_LOG, DEVIATION_LOG))
    inputs = device.mean + DEVIATIONS * random.standard_normal((count, INPUTS))
    return inputs, (inputs @ device.W + device.b).argmax(axis=1)


def draw_device(seed: int, place: int, alpha: float, beta: float) -> SyntheticDevice:
    """Draw a device's distribution."""
    random = generator(seed, "synthetic device", place)
    u = alpha * random.standard_normal()
    B = beta * random.standard_normal()
    mean = random.normal(B, 1.0, INPUTS)
    return SyntheticDevice(
        mean, random.normal(u, 1.0, (INPUTS, CLASSES)), random.normal(u, 1.0, CLASSES)
    )

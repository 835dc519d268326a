"""Hand-written digits: 1,797 real images of 8×8 pixels that come with scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from .models import seeded
from .partition import Indices, check_enough, dirichlet, iid, shards, split
from .randomness import generator
from .task import Examples, Task

SIDE, CLASSES, BRIGHTEST = 8, 10, 16.0


@dataclass(frozen=True)
class Split:
    """The settings on which the split of the digits depends."""

    model: str
    clients: int
    partition: str
    shards_per_client: int
    dirichlet_alpha: float
    rotated_clients: int
    seed: int

    @classmethod
    def of(cls, config: Mapping[str, object]) -> "Split":
        """Return the part of a run config that concerns this task."""
        return cls(**{name: config[name.replace("_", "-")] for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def load(settings: Split) -> Task:
    """Return the digits, split into clients.

    The images of `rotated_clients` seeded clients are turned by 90°: the same classes through a camera that is
    mounted sideways.
    """
    from sklearn.datasets import load_digits  # imported late: it takes a second

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy((pixels / BRIGHTEST).astype(np.float32)).reshape(-1, 1, SIDE, SIDE)
    targets = torch.from_numpy(labels.astype(np.int64))
    width = len(str(settings.clients - 1))
    names = tuple(f"client-{i:0{width}d}" for i in range(settings.clients))
    sideways = set(generator(settings.seed, "rotated").permutation(names)[: settings.rotated_clients])
    train, test = {}, {}
    for name, indices in zip(names, deal(labels, settings), strict=True):
        turned = torch.rot90(images, dims=(2, 3)) if name in sideways else images
        train[name], test[name] = (
            Examples(turned[part].contiguous(), targets[part]) for part in split(indices, settings.seed, name)
        )
    return Task(
        clients=names,
        model=partial(seeded, settings.model, SIDE, CLASSES, settings.seed),
        loss=partial(cross_entropy, reduction="none"),
        train=train,
        test=test,
    )


def deal(labels: NDArray[np.int64], settings: Split) -> list[Indices]:
    """Return each client's example indices, at least FEWEST each."""
    match settings.partition:
        case "shards":
            parts = shards(labels, settings.clients, settings.shards_per_client, settings.seed)
        case "dirichlet":
            parts = dirichlet(labels, settings.clients, settings.dirichlet_alpha, settings.seed)
        case _:
            parts = iid(labels, settings.clients, settings.seed)
    check_enough(parts, len(labels))
    return parts

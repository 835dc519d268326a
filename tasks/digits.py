"""Hand-written digits: 1,797 real images of 8×8 pixels that come with scikit-learn."""

from functools import cache, partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from .models import build
from .partition import deal, split
from .task import Examples, Setup, Splits, Task

SIDE, CLASSES, BRIGHTEST = 8, 10, 16.0


def load(setup: Setup, *, rotated_clients: int) -> Task:
    """Return the digits, split into clients.

    The images of `rotated_clients` seeded clients are turned by 90°: the same classes through a camera that is
    mounted sideways.
    """
    from sklearn.datasets import load_digits  # imported late: it takes a second

    if rotated_clients > setup.clients:
        raise FairbloomError(
            f"digits.rotated-clients = {rotated_clients}: at most clients = {setup.clients} of them can be turned"
        )
    pixels, labels = load_digits(return_X_y=True)
    upright = torch.from_numpy((pixels / BRIGHTEST).astype(np.float32)).reshape(-1, 1, SIDE, SIDE)
    turned = torch.rot90(upright, dims=(2, 3)).contiguous() if rotated_clients else upright
    targets = torch.from_numpy(labels.astype(np.int64))
    width = len(str(setup.clients - 1))
    names = tuple(f"client-{i:0{width}d}" for i in range(setup.clients))
    sideways = set(generator(setup.seed, "rotated").permutation(names)[:rotated_clients])
    dealt = dict(zip(names, deal(labels, setup), strict=True))

    @cache
    def splits(client: str) -> Splits:
        images = turned if client in sideways else upright
        train, test = (torch.from_numpy(rows) for rows in split(dealt[client], setup.seed, client))
        return Splits(Examples(images, targets, train), Examples(images, targets, test))

    return Task(
        clients=names,
        model=partial(build, setup.model, (1, SIDE, SIDE), CLASSES, setup.seed),
        loss=partial(cross_entropy, reduction="none"),
        splits=splits,
    )

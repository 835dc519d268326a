"""Hand-written digits: 1,797 real images of 8×8 pixels that come with scikit-learn."""

import gzip
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from .models import build
from .partition import deal, split
from .task import Examples, Setup, Splits, Task

SIDE, CLASSES, BRIGHTEST = 8, 10, 16.0


@cache
def read() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images, shape (1797, 1, 8, 8), from 0 to 1, and their labels, from scikit-learn's own file.

    Raises
    ------
    FairbloomError
        When scikit-learn is not installed.
    """
    installed = find_spec("sklearn")  # to import it takes a second, a hundred times as long as to read the file
    if installed is None or installed.origin is None:
        raise FairbloomError("task = 'digits': its images come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, np.float32, delimiter=",")
    return (table[:, :-1] / BRIGHTEST).reshape(-1, 1, SIDE, SIDE), table[:, -1].astype(np.int64)


def load(setup: Setup, *, rotated_clients: int) -> Task:
    """Return the digits, split into clients.

    The images of `rotated_clients` seeded clients are turned by 90°: the same classes through a camera that is
    mounted sideways.
    """
    if rotated_clients > setup.clients:
        raise FairbloomError(
            f"digits.rotated-clients = {rotated_clients}: at most clients = {setup.clients} of them can be turned"
        )
    images, labels = read()
    upright = torch.from_numpy(images)
    turned = torch.rot90(upright, dims=(2, 3)).contiguous() if rotated_clients else upright
    targets = torch.from_numpy(labels)
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

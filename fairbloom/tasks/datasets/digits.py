"""Hand-written digits: 1,797 real images of 8×8 pixels that come with scikit-learn."""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fairbloom.errors import FairbloomError

from ..task import Setup, Task
from ..task_info import PictureSet
from . import pictures
from .pictures import Pictures

SIDE = 8


@cache
def read() -> Pictures:
    """Return images, shape (1797, 1, 8, 8), from 0 to 16, and labels; the test set is empty."""
    # Importing scikit-learn takes a second, a hundred times as long as reading its file.
    installed = find_spec("sklearn")
    if installed is None or installed.origin is None:
        raise FairbloomError(
            "task = 'digits': its images come with scikit-learn: pip install scikit-learn"
        )
    with gzip.open(Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, np.float32, delimiter=",")
    images = table[:, :-1].reshape(-1, 1, SIDE, SIDE)
    labels = table[:, -1].astype(np.int64)
    return Pictures(images, labels, images[:0], labels[:0])


def load(setup: Setup, *, info: PictureSet, rotated_clients: int) -> Task:
    """Return the digits, split among clients; some of them have turned images."""
    task = pictures.load(setup, info=info, rotated_clients=rotated_clients, read_all=read)
    # A server has these data, too: it refuses here a split that is impossible.
    task.splits(task.clients[0])
    return task

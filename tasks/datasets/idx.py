"""Data sets in the format of MNIST: four IDX files, as torchvision lays them out."""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

from ..known import TASKS
from ..task import Setup
from .pictures.album import Pictures
from .store import located
from .vision import fetch

UNSIGNED_BYTES = 0x08
"""IDX's number for the type of elements."""


def read(name: str, setup: Setup, dataset: str) -> Pictures:
    """Return the images of one of the data sets; it is downloaded by torchvision where it is not there.

    Parameters
    ----------
    name
        The task.
    setup
        Says where the data lie.
    dataset
        torchvision's class.

    Raises
    ------
    FairbloomError
        When the files are missing and cannot be downloaded, or are something else.
    """
    info = TASKS[name]
    root = located(info, setup, lambda place: fetch(dataset, place))
    images, labels, tested, tested_labels = (array_in(root / file.path) for file in info.files)
    return Pictures(images[:, None], labels.astype(np.int64), tested[:, None], tested_labels.astype(np.int64))


def array_in(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes.

    Raises
    ------
    FairbloomError
        When it is none.
    """
    content = path.read_bytes()
    dimensions = content[3] if len(content) > 4 else 0
    start = 4 + 4 * dimensions
    shape = tuple(map(int, np.frombuffer(content[4:start], ">u4"))) if len(content) >= start else ()
    if content[:3] != bytes((0, 0, UNSIGNED_BYTES)) or not shape or len(content) != start + prod(shape):
        raise FairbloomError(f"{path} is no IDX file of bytes, or is cut short: put the original in its place")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)

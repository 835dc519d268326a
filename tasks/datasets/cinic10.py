"""CINIC-10: 270,000 coloured pictures of 32×32 pixels of the classes of CIFAR-10, most of them from ImageNet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..known import TASKS
from ..partition import Labels
from ..task import Setup
from . import cifar10
from .parquet import columns_in, decoded, fetch_from, numbers
from .pictures.album import Album, Pictures
from .store import located

REPOSITORY = "flwrlabs/cinic10"


def read(setup: Setup) -> Pictures:
    """Return the images; the official training and validation sets are the training images, as in the papers.

    Raises
    ------
    FairbloomError
        When the files are missing and cannot be downloaded, or are something else.
    """
    info = TASKS["cinic10"]
    root = located(info, setup, fetch_from(REPOSITORY, info))
    train, validation, test = (root / file.path for file in info.files)
    return Pictures(*images_in([train, validation]), *images_in([test]))


def images_in(paths: Sequence[Path]) -> tuple[NDArray[np.uint8], Labels]:
    """Return the images, shape (n, 3, 32, 32), and the labels, shape (n,), of parquet files."""
    found = [(path, columns_in(path, ("image", "label"))) for path in paths]
    labels = [numbers(path, "label", columns["label"], len(ALBUM.classes)) for path, columns in found]
    images = [
        decoded(path, columns["image"], range(len(columns["image"])), "RGB", ALBUM.shape) for path, columns in found
    ]
    return np.concatenate(images), np.concatenate(labels)


ALBUM = Album(
    name="cinic10",
    shape=cifar10.ALBUM.shape,
    classes=cifar10.ALBUM.classes,
    brightest=255.0,
    read=read,
)

load = ALBUM.load

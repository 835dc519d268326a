"""The formats in which data sets of pictures come: IDX files, pickled batches and parquet tables."""

import pickle
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

from ...partition import Labels
from ...task import Setup, Task
from .. import parquet
from ..downloads import fetch_from_hub, fetch_from_torchvision
from ..store import locate
from . import PictureSet
from .album import Album, Pictures, Shifts, task_of

CIFAR = (3, 32, 32)
"""The shape of an image in a batch: channels, height and width."""


def load(
    info: PictureSet,
    setup: Setup,
    *,
    classes: str,
    test: str,
    standardise: str,
    rotated_clients: int,
    noisy_clients: int,
    dimmed_clients: int,
) -> Task:
    """Return the task of a data set; called with the SETTINGS that all of them have, see `album.task_of`."""
    album = Album(info.name, info.shape, info.labels, 255.0, partial(read, info))
    shifts = Shifts(rotated_clients, noisy_clients, dimmed_clients)
    return task_of(album, setup, shifts, classes=classes, test=test, standardise=standardise)


def read(info: PictureSet, setup: Setup) -> Pictures:
    """Return the images of a data set, which is downloaded where it is not there."""
    fetch = fetch_from_hub if info.format == "parquet" else fetch_from_torchvision
    root = locate(info, setup, partial(fetch, info, info.origin))
    paths = [root / file.path for file in info.files]
    if info.format == "idx":
        images, labels, tested, tested_labels = map(read_idx, paths)
        return Pictures(images[:, None], labels.astype(np.int64), tested[:, None], tested_labels.astype(np.int64))
    if info.format == "cifar":
        *train, test = (read_batch(path, info.target, info.classes) for path in paths)
    else:
        *train, test = (_read_table(path, info) for path in paths)
    trained, classes = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Pictures(trained, classes, *test)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes."""
    content = path.read_bytes()
    dimensions = content[3] if len(content) > 4 else 0
    start = 4 + 4 * dimensions
    shape = tuple(map(int, np.frombuffer(content[4:start], ">u4"))) if len(content) >= start else ()
    if content[:3] != b"\0\0\x08" or not shape or len(content) != start + prod(shape):
        raise FairbloomError(f"{path} is no IDX file of bytes, or is cut short: put the original in its place")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_table(path: Path, info: PictureSet) -> tuple[NDArray[np.uint8], Labels]:
    columns = parquet.read_columns(path, ("image", info.target))
    labels = parquet.to_labels(path, info.target, columns[info.target], info.classes)
    content = columns["image"]
    return parquet.decode(path, content, range(len(content)), "RGB", info.shape), labels


# Pickled batches ------------------------------------------------------------------------------------------------------


def read_batch(path: Path, target: str, classes: int) -> tuple[NDArray[np.uint8], Labels]:
    """Return the images, shape (n, 3, 32, 32), and the labels, shape (n,), of a pickled batch."""
    with path.open("rb") as content:
        try:
            batch = _Plain(content, encoding="latin1").load()
            images, labels = batch["data"], np.asarray(batch[target])
        except Exception as error:  # a pickle that is none, or a hostile one, raises nearly anything
            raise FairbloomError(
                f"{path} is no CIFAR batch ({type(error).__name__}: {error}): put the original in its place"
            ) from error
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.shape != (len(images), prod(CIFAR))
        or labels.shape != (len(images),)
        or labels.dtype.kind != "i"
        or not len(labels)
        or not 0 <= labels.min() <= labels.max() < classes
    ):
        raise FairbloomError(
            f"{path} is no CIFAR batch: its data must be bytes of shape (n, 3072), and {target} n whole numbers from 0 "
            f"to {classes - 1}: put the original in its place"
        )
    return images.reshape(-1, *CIFAR), labels.astype(np.int64)


class _Plain(pickle.Unpickler):
    """Loads NumPy arrays and Python's plain types, and nothing else: a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle of a NumPy array asks for."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return ALLOWED[module, name]


def _encode(text: str, encoding: str) -> bytes:
    """Return the bytes of an array, which Python 3 writes as text in the old format of pickles."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r}, not in latin1")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
"""What a pickle may name: the parts of a NumPy array, under its old and its new module."""

"""Data sets in the format of CIFAR: pickled batches of coloured images of 32×32 pixels, laid out by torchvision."""

import pickle
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

from ...known import TASKS
from ...partition import Labels
from ...task import Setup
from ..store import located
from ..vision import fetch
from .album import Pictures

SHAPE = (3, 32, 32)
"""Of an image: channels, height and width."""


def read(name: str, setup: Setup, dataset: str, target: str) -> Pictures:
    """Return the images of one of the data sets; it is downloaded by torchvision where it is not there.

    Parameters
    ----------
    name
        The task, whose last file is the official test set.
    setup
        Says where the data lie.
    dataset
        torchvision's class.
    target
        What the batches call their labels.

    Raises
    ------
    FairbloomError
        When the files are missing and cannot be downloaded, or are something else.
    """
    info = TASKS[name]
    root = located(info, setup, lambda place: fetch(dataset, place))
    *train, test = (batch_in(root / file.path, target, info.classes) for file in info.files)
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Pictures(images, labels, *test)


def batch_in(path: Path, target: str, classes: int) -> tuple[NDArray[np.uint8], Labels]:
    """Return the images, shape (n, 3, 32, 32), and the labels, shape (n,), of a pickled batch.

    Raises
    ------
    FairbloomError
        When it is none.
    """
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
        or images.shape != (len(images), int(np.prod(SHAPE)))
        or labels.shape != (len(images),)
        or labels.dtype.kind != "i"
        or not len(labels)
        or not 0 <= labels.min() <= labels.max() < classes
    ):
        raise FairbloomError(
            f"{path} is no CIFAR batch: its data must be bytes of shape (n, 3072), and {target} n whole numbers from 0 "
            f"to {classes - 1}: put the original in its place"
        )
    return images.reshape(-1, *SHAPE), labels.astype(np.int64)


class _Plain(pickle.Unpickler):
    """Loads NumPy arrays and Python's plain types, and nothing else: a pickle can name any function to be called."""

    def __init__(self, content: IO[bytes], encoding: str) -> None:
        super().__init__(content, encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle of a NumPy array asks for.

        Raises
        ------
        pickle.UnpicklingError
            When it asks for anything else.
        """
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return ALLOWED[module, name]


def _encoded(text: str, encoding: str) -> bytes:
    """Return the bytes of an array, which Python 3 writes as text in the old format of pickles."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r}, and latin1 is due")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encoded,
}
"""What a pickle may name: the parts of a NumPy array, under its old and its new module."""

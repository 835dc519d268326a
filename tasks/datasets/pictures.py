"""Pictures with one label each: files of MNIST, CIFAR and the Hugging Face hub.

Dealt, standardised and turned.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from ..partition import (
    Dealt,
    Indices,
    Labels,
    Parts,
    add_labels,
    deal,
    name_clients,
    number_clients,
    split,
    splits_of,
)
from ..task import Setup, Splits, Task
from ..task_info import PictureSet
from .classification import classify
from .hub import decode, read_columns, to_labels
from .store import locate

CLASS = "class"
"""The partition that makes a client of each class."""

CIFAR = (3, 32, 32)
"""The shape of an image in a batch: channels, height and width."""


class Pictures(NamedTuple):
    """Images, shape (n, channels, height, width), and labels from 0, with those of an official test set, if any."""

    images: NDArray[np.generic]
    labels: Labels
    tested: NDArray[np.generic]
    tested_labels: Labels


def load(
    setup: Setup,
    *,
    info: PictureSet,
    classes: str,
    test: str,
    standardise: str,
    rotated_clients: int,
) -> Task:
    """Return the task of a data set.

    Its images are read when those of a client are asked for: a server has none.
    """
    return deal_pictures(
        info, partial(read, info, setup), setup, rotated_clients, classes, test, standardise
    )


class _Dealt(NamedTuple):
    """The images that are kept, official training images first, and which client has which.

    `scale` standardises images with values from 0 to 1.
    """

    images: NDArray[np.generic]
    inputs: Tensor
    targets: Tensor
    clients: Mapping[str, Dealt]
    scale: Callable[[Tensor], Tensor]


# Clients ------------------------------------------------------------------------------------------


def deal_pictures(
    info: PictureSet,
    read_all: Callable[[], Pictures],
    setup: Setup,
    rotated: int,
    classes: str = "",
    test: str = "train",
    standardise: str = "none",
) -> Task:
    """Return the task of a data set of images, split into clients.

    Parameters
    ----------
    rotated
        How many clients' images are turned by 90 degrees; the seed draws which.
    classes
        The classes that are kept, by their numbers, with commas; "" for all. They are renumbered in
        this order.
    test
        What clients are tested on: "merged" a share of what they get of all images, "train" of the
        training images alone, "official" what they get of the official test set, by the same
        shards, classes or shares.
    standardise
        "channel": (x − μ)/σ of each channel; "pixel": (x − μ)/(σ + 0.001) of each pixel, from 0 to
        255; "none": x from 0 to 1. Mean and deviation are those of all official training images.
    """
    known = [str(number) for number in range(len(info.labels))]
    words = [word.strip() for word in classes.split(",")] if classes else known
    if len(set(words)) < max(len(words), 2) or not set(words) <= set(known):
        raise FairbloomError(
            f"{info.name}.classes = {classes!r}: name two or more different classes by their"
            f" numbers, from 0 to {len(known) - 1}, with commas"
        )
    kept = tuple(map(int, words))
    called = [info.labels[number] for number in kept]
    names = (
        name_clients(setup, called) if setup.partition == CLASS else number_clients(setup.clients)
    )
    if rotated > len(names):
        raise FairbloomError(
            f"{info.name}.rotated-clients = {rotated}: there are only clients = {len(names)}"
        )
    turned = set(generator(setup.seed, "rotated").permutation(names)[:rotated].tolist())

    @cache
    def dealt() -> _Dealt:
        pictures = read_all()
        scale = _make_scaling(pictures.images, info.white, standardise)
        trained, labels = _keep_classes(pictures.images, pictures.labels, kept)
        tested, tested_labels = _keep_classes(pictures.tested, pictures.tested_labels, kept)
        if test == "train":
            tested = tested[:0]
            tested_labels = tested_labels[:0]
        images = np.concatenate([trained, tested])
        targets = np.concatenate([labels, tested_labels])
        apart = tested_labels if test == "official" else None
        dealing = targets if apart is None else labels
        if setup.partition == CLASS:
            none = np.empty(0, np.int64) if apart is None else apart
            parts = [
                Dealt(np.flatnonzero(dealing == each), np.flatnonzero(none == each))
                for each in range(len(kept))
            ]
        else:
            parts = deal(dealing, setup, apart)
        clients = {
            n: Dealt(each.examples, each.tested + len(labels))
            for n, each in zip(names, parts, strict=True)
        }
        inputs = scale(_to_unit(images, info.white))
        return _Dealt(images, inputs, torch.from_numpy(targets), clients, scale)

    def parts_of(client: str) -> Parts:
        examples, tested = dealt().clients[client]
        return split(examples, setup, client, tested if test == "official" else None)

    def splits(client: str) -> Splits:
        all_dealt = dealt()
        parts = parts_of(client)
        if client not in turned:
            return splits_of(all_dealt.inputs, all_dealt.targets, parts)
        rows = np.concatenate(parts)
        images = torch.rot90(_to_unit(all_dealt.images[rows], info.white), dims=(2, 3)).contiguous()
        starts = np.cumsum([0, *map(len, parts)])
        mine = Parts(*(np.arange(start, end) for start, end in pairwise(starts)))
        return splits_of(all_dealt.scale(images), all_dealt.targets[torch.from_numpy(rows)], mine)

    def rows_of(client: str) -> list[tuple[Indices, Labels]]:
        return add_labels(parts_of(client), dealt().targets.numpy())

    white = info.white if standardise == "none" else 0.0
    task = classify(setup, names, info.shape, called, splits, rows_of, white=white)
    return replace(task, marks=dict.fromkeys(turned, "rotated"))


def _keep_classes(
    images: NDArray[np.generic], labels: Labels, kept: tuple[int, ...]
) -> tuple[NDArray[np.generic], Labels]:
    numbers = np.full(max(max(kept), labels.max(initial=0)) + 1, -1)
    numbers[list(kept)] = np.arange(len(kept))
    new = numbers[labels]
    return (images, new) if (new >= 0).all() else (images[new >= 0], new[new >= 0])


def _to_unit(images: NDArray[np.generic], white: float) -> Tensor:
    unit = images.astype(np.float32)
    unit /= np.float32(white)  # in place, as all of this: a copy of CINIC-10 takes three gigabytes
    return torch.from_numpy(unit)


def _make_scaling(
    images: NDArray[np.generic], white: float, standardise: str
) -> Callable[[Tensor], Tensor]:
    """Return what standardises images that are from 0 to 1, in place, by mean and deviation of the training images."""
    if standardise == "none":
        return lambda unit: unit
    over: tuple[int, ...] = (0, 2, 3) if standardise == "channel" else (0,)
    mean = images.mean(axis=over, keepdims=True, dtype=np.float64) / white
    deviation = images.std(axis=over, keepdims=True, dtype=np.float64) / white
    if standardise == "pixel":
        deviation += 0.001 / white  # some pixels are black in all images
    center, scale = (torch.from_numpy(each[0]).float() for each in (mean, deviation))
    return lambda unit: unit.sub_(center).div_(scale)


# Files --------------------------------------------------------------------------------------------


def read(info: PictureSet, setup: Setup) -> Pictures:
    """Return the images of a data set, by the format of its files.

    They are downloaded where they are missing.
    """
    paths = locate(info, setup)
    if paths[0].name.endswith("-ubyte"):
        images, labels, tested, tested_labels = map(read_idx, paths)
        return Pictures(
            images[:, None],
            labels.astype(np.int64),
            tested[:, None],
            tested_labels.astype(np.int64),
        )
    read_part = _read_table if paths[0].suffix == ".parquet" else read_batch
    *train, test = (read_part(path, info.target, len(info.labels)) for path in paths)
    trained, classes = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Pictures(trained, classes, *test)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes."""
    content = path.read_bytes()
    dimensions = content[3] if len(content) > 4 else 0
    start = 4 + 4 * dimensions
    shape = tuple(map(int, np.frombuffer(content[4:start], ">u4"))) if len(content) >= start else ()
    if content[:3] != b"\0\0\x08" or not shape or len(content) != start + prod(shape):
        raise FairbloomError(
            f"{path} is no IDX file of bytes, or is cut short: put the original in its place"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_table(path: Path, target: str, classes: int) -> tuple[NDArray[np.uint8], Labels]:
    columns = read_columns(path, "image", target)
    labels = to_labels(path, columns[target], classes)
    return decode(path, columns["image"], range(len(labels)), "RGB", CIFAR), labels


def read_batch(path: Path, target: str, classes: int) -> tuple[NDArray[np.uint8], Labels]:
    """Return the images, shape (n, 3, 32, 32), and the labels, shape (n,), of a pickled batch of CIFAR."""
    with path.open("rb") as content:
        try:
            batch = _Plain(content, encoding="latin1").load()
            images = batch["data"]
            labels = np.asarray(batch[target])
            pixels = images.astype(np.uint8, casting="no").reshape(len(labels), *CIFAR)
            if (
                labels.ndim != 1
                or labels.dtype.kind != "i"
                or not 0 <= labels.min() <= labels.max() < classes
            ):
                raise ValueError(f"{target} must be whole numbers from 0 to {classes - 1}")
        except (
            Exception
        ) as error:  # a pickle that is none, or a hostile one, raises nearly anything
            raise FairbloomError(
                f"{path} is no CIFAR batch ({type(error).__name__}: {error}): put the original in"
                " its place"
            ) from error
    return pixels, labels.astype(np.int64)


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

"""Read, split, standardise and rotate pictures with one label each.

They come from files of MNIST, of CIFAR and of the Hugging Face hub.
"""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
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
    draw_held_out,
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

# The partition that makes a client of each class.
CLASS = "class"

# The shape of an image in a batch: channels, height and width.
CIFAR = (3, 32, 32)


class Pictures(NamedTuple):
    """Images, shape (n, channels, height, width), and labels from 0; and an official test set.

    `tested` is empty without an official test set.
    """

    images: NDArray[np.generic]
    labels: Labels
    tested: NDArray[np.generic]
    tested_labels: Labels


class _Dealt(NamedTuple):
    """The images that are used, official training images first, and each client's rows.

    `scale` standardises images with values from 0 to 1, in place.
    """

    images: NDArray[np.generic]
    inputs: Tensor
    targets: Tensor
    clients: Mapping[str, Dealt]
    scale: Callable[[Tensor], Tensor]


# Clients ------------------------------------------------------------------------------------------


def _read_classes(info: PictureSet, classes: str, model_outputs: int) -> tuple[int, ...]:
    """Return the classes to keep, all of them for ""; check that the model has as many outputs."""
    known = [str(number) for number in range(len(info.labels))]
    words = [word.strip() for word in classes.split(",")] if classes else known
    if len(set(words)) < max(len(words), 2) or not set(words) <= set(known):
        raise FairbloomError(
            f"{info.name}.classes = {classes!r}: name two or more different classes by their"
            f" numbers, from 0 to {len(known) - 1}, with commas"
        )
    if 0 < model_outputs < len(words):
        raise FairbloomError(
            f"{info.name}.model-outputs = {model_outputs}: there are {len(words)} classes: set at"
            f" least {len(words)}, or leave it out"
        )
    return tuple(map(int, words))


def load(
    setup: Setup,
    *,
    info: PictureSet,
    rotated_clients: int,
    classes: str = "",
    test: str = "train",
    standardise: str = "none",
    model_outputs: int = 0,
    read_all: Callable[[], Pictures] | None = None,
) -> Task:
    """Return the task of a data set of images, split among clients.

    Parameters
    ----------
    rotated_clients
        The number of clients with images turned by 90 degrees; the seed draws them.
    classes
        The numbers of the classes that are used, with commas; "" for all. They are renumbered in
        this order.
    test
        The test images of clients. "merged": a share of their images, which are split from training
        and test images; "train": a share of their images, which are training images only;
        "official": their part of the official test set, by the same shards, classes or shares.
    standardise
        "channel": (x − μ)/σ of each channel; "pixel": (x − μ)/(σ + 0.001) of each pixel, from 0 to
        255; "none": x from 0 to 1. Mean and deviation are of all official training images that
        no held-out client has.
    model_outputs
        The number of the model's outputs, of which the classes are the first. 0: one a class.
    read_all
        Reads the images when a client needs them, not on a server; by default from the files.
    """
    kept = _read_classes(info, classes, model_outputs)
    class_names = [info.labels[number] for number in kept]
    names = (
        name_clients(setup, class_names)
        if setup.partition == CLASS
        else number_clients(setup.clients)
    )
    if rotated_clients > len(names):
        raise FairbloomError(
            f"{info.name}.rotated-clients = {rotated_clients}: there are only clients ="
            f" {len(names)}"
        )
    turned = set(generator(setup.seed, "rotated").permutation(names)[:rotated_clients].tolist())

    @cache
    def dealt() -> _Dealt:
        pictures = read_all() if read_all else read(info, setup)
        trained, labels = _keep_classes(pictures.images, pictures.labels, kept)
        tested, tested_labels = _keep_classes(pictures.tested, pictures.tested_labels, kept)
        if test == "train":
            tested = tested[:0]
            tested_labels = tested_labels[:0]
        images = np.concatenate([trained, tested])
        targets = np.concatenate([labels, tested_labels])
        split_labels = labels if test == "official" else targets
        official = tested_labels if test == "official" else tested_labels[:0]
        if setup.partition == CLASS:
            parts = [
                Dealt(np.flatnonzero(split_labels == label), np.flatnonzero(official == label))
                for label in range(len(kept))
            ]
        else:
            parts = deal(split_labels, setup, official if test == "official" else None)
        clients = {
            name: Dealt(part.examples, part.tested + len(labels))
            for name, part in zip(names, parts, strict=True)
        }
        used = pictures.images
        if held_out := [clients[name].examples for name in draw_held_out(setup, names)]:
            rows = np.concatenate(held_out)
            used = np.delete(trained, rows[rows < len(trained)], axis=0)
        scale = _make_scaling(used, info.white, standardise)
        return _Dealt(
            images, scale(_to_unit(images, info.white)), torch.from_numpy(targets), clients, scale
        )

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
        ends = np.cumsum([0, *map(len, parts)])
        return splits_of(
            all_dealt.scale(images),
            all_dealt.targets[torch.from_numpy(rows)],
            Parts(*(np.arange(start, end) for start, end in pairwise(ends))),
        )

    def rows_of(client: str) -> list[tuple[Indices, Labels]]:
        return add_labels(parts_of(client), dealt().targets.numpy())

    white = info.white if standardise == "none" else 0.0
    outputs = [*class_names, *(f"unused-{k}" for k in range(len(kept), model_outputs))]
    return replace(
        classify(setup, names, info.shape, outputs, splits, rows_of, white=white),
        marks=dict.fromkeys(turned, "rotated"),
    )


def _keep_classes(
    images: NDArray[np.generic], labels: Labels, kept: tuple[int, ...]
) -> tuple[NDArray[np.generic], Labels]:
    numbers = np.full(max(max(kept), labels.max(initial=0)) + 1, -1)
    numbers[list(kept)] = np.arange(len(kept))
    new = numbers[labels]
    is_kept = new >= 0
    # The images are only copied if some are left out.
    return (images, new) if is_kept.all() else (images[is_kept], new[is_kept])


def _to_unit(images: NDArray[np.generic], white: float) -> Tensor:
    unit = images.astype(np.float32)
    unit /= np.float32(white)  # in place: a copy of CINIC-10 takes three gigabytes
    return torch.from_numpy(unit)


def _make_scaling(
    images: NDArray[np.generic], white: float, standardise: str
) -> Callable[[Tensor], Tensor]:
    """Return a function that standardises images from 0 to 1, in place, by the training images."""
    if standardise == "none":
        return lambda unit: unit
    axes: tuple[int, ...] = (0, 2, 3) if standardise == "channel" else (0,)
    mean = images.mean(axis=axes, keepdims=True, dtype=np.float64) / white
    deviation = images.std(axis=axes, keepdims=True, dtype=np.float64) / white
    if standardise == "pixel":
        deviation += 0.001 / white  # some pixels are black in all images
    center = torch.from_numpy(mean[0]).float()
    scale = torch.from_numpy(deviation[0]).float()
    return lambda unit: unit.sub_(center).div_(scale)


# Files --------------------------------------------------------------------------------------------


def read(info: PictureSet, setup: Setup) -> Pictures:
    """Return the images of a data set, by the format of its files; download missing files."""
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
    *train, test = [read_part(path, info.target, len(info.labels)) for path in paths]
    return Pictures(
        np.concatenate([images for images, _ in train]),
        np.concatenate([numbers for _, numbers in train]),
        *test,
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes."""
    content = path.read_bytes()
    start = 4 + 4 * (content[3] if len(content) > 4 else 0)
    shape = tuple(map(int, np.frombuffer(content[4:start], ">u4"))) if len(content) >= start else ()
    if content[:3] != b"\0\0\x08" or not shape or len(content) != start + prod(shape):
        raise FairbloomError(
            f"{path} is not an IDX file of bytes, or is cut short: put the original in its place"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_table(path: Path, target: str, classes: int) -> tuple[NDArray[np.uint8], Labels]:
    columns = read_columns(path, "image", target)
    labels = to_labels(path, columns[target].to_numpy(zero_copy_only=False), classes)
    return decode(path, columns["image"], range(len(labels)), "RGB", CIFAR), labels


def read_batch(path: Path, target: str, classes: int) -> tuple[NDArray[np.uint8], Labels]:
    """Return images, shape (n, 3, 32, 32), and labels, shape (n,), of a pickled batch of CIFAR."""
    with path.open("rb") as content:
        try:
            batch = _Plain(content, encoding="latin1").load()
            labels = np.asarray(batch[target])
            pixels = batch["data"].astype(np.uint8, casting="no").reshape(len(labels), *CIFAR)
        except Exception as error:  # another file, or a hostile pickle, raises nearly anything
            raise FairbloomError(
                f"{path} is not a CIFAR batch ({type(error).__name__}: {error}): put the original"
                " in its place"
            ) from error
    return pixels, to_labels(path, labels, classes)


class _Plain(pickle.Unpickler):
    """Loads only NumPy arrays and Python's plain types, because a pickle can call any function."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a part of a NumPy array; refuse any other name."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return ALLOWED[module, name]


def _encode(text: str, encoding: str) -> bytes:
    """Return the bytes of an array, which Python 3 writes as text in the old format of pickles."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r}, not in latin1")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]

# The names that a pickle may use: the parts of a NumPy array, in its old and its new module.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}

"""How images with one label each are dealt to clients, standardised and shifted."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.protocol.streams import generator

from ...partition import Dealt, Indices, Labels, Parts, add_labels, deal, name_clients, number_clients, split, splits_of
from ...preprocessing import ARRAYS, Preprocessing
from ...task import Setup, Splits, Task
from ..classification import classify

CLASS = "class"
"""The partition that makes a client of each class."""

NOISE, DIM = 0.5, 0.25
"""Standard deviation of the noise in noisy clients' images, and brightness of dimmed ones, black to white being 1."""


class Pictures(NamedTuple):
    """Images, shape (n, channels, height, width), and labels from 0, with those of an official test set, if any."""

    images: NDArray[np.generic]
    labels: NDArray[np.int64]
    tested: NDArray[np.generic]
    tested_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Album:
    """What is known of a data set of images before it is read; `brightest` is the value of white.

    `read` is called when a client's images are asked for: a server has none.
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    brightest: float
    read: Callable[[Setup], Pictures]


@dataclass(frozen=True)
class Shifts:
    """How many clients' images are rotated, noisy and dimmed; the seed draws which."""

    rotated: int
    noisy: int
    dimmed: int

    def draw(self, album: Album, names: Sequence[str], seed: int) -> Mapping[str, frozenset[str]]:
        """Return the clients of each kind."""
        drawn = {}
        for kind, number in (("rotated", self.rotated), ("noisy", self.noisy), ("dimmed", self.dimmed)):
            if number > len(names):
                raise FairbloomError(
                    f"{album.name}.{kind}-clients = {number}: at most clients = {len(names)} of them can be {kind}"
                )
            drawn[kind] = frozenset(generator(seed, kind).permutation(names)[:number] if number else ())
        return drawn


def shift(images: Tensor, kinds: Collection[str], seed: int, client: str) -> Tensor:
    """Return a client's images, from 0 to 1 and of shape (n, channels, height, width), as its camera sees them."""
    if "rotated" in kinds:
        images = torch.rot90(images, dims=(2, 3)).contiguous()
    if "dimmed" in kinds:
        images = images * DIM
    if "noisy" in kinds:
        noise = generator(seed, "noise", client).standard_normal(tuple(images.shape), np.float32)
        images = (images + NOISE * torch.from_numpy(noise)).clamp(0.0, 1.0)
    return images


def task_of(
    album: Album, setup: Setup, shifts: Shifts, *, classes: str = "", test: str = "train", standardise: str = "none"
) -> Task:
    """Return the task of a data set of images, split into clients; `shifts` says how the images of some clients differ.

    Parameters
    ----------
    classes
        The classes that are kept, by their numbers, with commas; "" for all. They are renumbered in this order.
    test
        What clients are tested on: "merged" a share of what they get of all images, "train" of the training images
        alone, "official" what they get of the official test set, by the same shards, classes or shares.
    standardise
        "channel": (x − μ)/σ of each channel; "pixel": (x − μ)/(σ + 0.001) of each pixel, from 0 to 255; "none": x from
        0 to 1. Mean and deviation are those of all official training images.
    """
    kept = _read_classes(album, classes)
    names = _find_names(album, kept, setup)
    drawn = shifts.draw(album, names, setup.seed)

    @cache
    def dealt() -> _Dealt:
        return _deal(album, setup, names, kept, test, standardise)

    def parts_of(client: str) -> Parts:
        examples, tested = dealt().clients[client]
        return split(examples, setup, client, tested if test == "official" else None)

    def splits(client: str) -> Splits:
        all_dealt, parts = dealt(), parts_of(client)
        if not (kinds := [kind for kind, clients in drawn.items() if client in clients]):
            return splits_of(all_dealt.inputs, all_dealt.targets, parts)
        rows = np.concatenate(parts)
        images = shift(_to_unit(all_dealt.images[rows], album.brightest), kinds, setup.seed, client)
        starts = np.cumsum([0, *map(len, parts)])
        mine = Parts(*(np.arange(start, end) for start, end in pairwise(starts)))
        return splits_of(all_dealt.scale(images), all_dealt.targets[torch.from_numpy(rows)], mine)

    def rows_of(client: str) -> list[tuple[Indices, Labels]]:
        return add_labels(parts_of(client), dealt().targets.numpy())

    taken = Preprocessing(
        form=ARRAYS,
        shape=album.shape,
        target="class",
        classes=tuple(album.classes[number] for number in kept),
        white=album.brightest if standardise == "none" else 0.0,
    )
    task = classify(setup, names, album.shape, len(kept), splits, rows_of)
    return replace(task, preprocessing=lambda client: taken)


def _read_classes(album: Album, classes: str) -> tuple[int, ...]:
    if not classes:
        return tuple(range(len(album.classes)))
    words = [word.strip() for word in classes.split(",")]
    known = {str(number): number for number in range(len(album.classes))}
    if len(set(words)) < max(len(words), 2) or not known.keys() >= set(words):
        raise FairbloomError(
            f"{album.name}.classes = {classes!r}: name two or more different classes by their numbers, from 0 to "
            f"{len(album.classes) - 1}, with commas"
        )
    return tuple(known[word] for word in words)


def _find_names(album: Album, kept: tuple[int, ...], setup: Setup) -> tuple[str, ...]:
    """Return the clients' names: those of the classes where each is a client, else numbers."""
    if setup.partition != CLASS:
        return number_clients(setup.clients)
    return name_clients(setup, [album.classes[number] for number in kept])


class _Dealt(NamedTuple):
    """The images that are kept, official training images first, and which client has which.

    `scale` standardises images with values from 0 to 1.
    """

    images: NDArray[np.generic]
    inputs: Tensor
    targets: Tensor
    clients: Mapping[str, Dealt]
    scale: Callable[[Tensor], Tensor]


def _deal(
    album: Album, setup: Setup, names: Sequence[str], kept: tuple[int, ...], test: str, standardise: str
) -> _Dealt:
    pictures = album.read(setup)
    scale = _make_scaling(pictures.images, album.brightest, standardise)
    trained, labels = _keep_classes(pictures.images, pictures.labels, kept)
    tested, tested_labels = _keep_classes(pictures.tested, pictures.tested_labels, kept)
    if test == "train":
        tested, tested_labels = tested[:0], tested_labels[:0]
    images, targets = np.concatenate([trained, tested]), np.concatenate([labels, tested_labels])
    if test == "official":
        parts = [
            Dealt(mine, beyond + len(labels)) for mine, beyond in _deal_labels(labels, setup, len(kept), tested_labels)
        ]
    else:
        parts = _deal_labels(targets, setup, len(kept))
    inputs = scale(_to_unit(images, album.brightest))
    return _Dealt(images, inputs, torch.from_numpy(targets), dict(zip(names, parts, strict=True)), scale)


def _deal_labels(labels: Labels, setup: Setup, classes: int, tested: Labels | None = None) -> list[Dealt]:
    if setup.partition != CLASS:
        return deal(labels, setup, tested)
    none = np.empty(0, np.int64) if tested is None else tested
    return [Dealt(np.flatnonzero(labels == label), np.flatnonzero(none == label)) for label in range(classes)]


def _keep_classes(
    images: NDArray[np.generic], labels: Labels, kept: tuple[int, ...]
) -> tuple[NDArray[np.generic], Labels]:
    numbers = np.full(max(max(kept), labels.max(initial=0)) + 1, -1)
    numbers[list(kept)] = np.arange(len(kept))
    new = numbers[labels]
    return (images, new) if (new >= 0).all() else (images[new >= 0], new[new >= 0])


def _to_unit(images: NDArray[np.generic], brightest: float) -> Tensor:
    unit = images.astype(np.float32)
    unit /= np.float32(brightest)  # in place, as all of this: a copy of CINIC-10 takes three gigabytes
    return torch.from_numpy(unit)


def _make_scaling(images: NDArray[np.generic], brightest: float, standardise: str) -> Callable[[Tensor], Tensor]:
    """Return what standardises images that are from 0 to 1, in place, by mean and deviation of the training images."""
    if standardise == "none":
        return lambda unit: unit
    over: tuple[int, ...] = (0, 2, 3) if standardise == "channel" else (0,)
    mean = images.mean(axis=over, keepdims=True, dtype=np.float64) / brightest
    deviation = images.std(axis=over, keepdims=True, dtype=np.float64) / brightest
    if standardise == "pixel":
        deviation += 0.001 / brightest  # some pixels are black in all images
    center, scale = (torch.from_numpy(each[0]).float() for each in (mean, deviation))
    return lambda unit: unit.sub_(center).div_(scale)

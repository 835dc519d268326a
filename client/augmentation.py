"""Random changes of the images that a client trains on.

Every image has draws of its own, from the client's generator on the CPU, so that all engines and
devices train on equal images.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairbloom.errors import ReportableError, did_you_mean
from fairbloom.imports import import_callable, is_import_string
from fairbloom.tasks.inputs import Inputs, move

from .work import NO_AUGMENTATION, LocalWork

FLIP = "flip"
CROP_FLIP = "crop-flip"

# The built-in augmentations. Each can change the images of several clients at once.
BUILT_IN = (NO_AUGMENTATION, FLIP, CROP_FLIP)

# An image is shifted by up to its side divided by this: by 4 pixels of 32, as is usual for CIFAR.
SHIFT = 8

# Draws of an image: whether it is flipped, and its shifts down and to the right.
DRAWS = 3

# Maps a batch of inputs to changed ones.
Augment = Callable[[Inputs], Inputs]


def make_augmentation(work: LocalWork) -> Augment | None:
    """Return the function that changes a client's batches, None if the work changes none.

    A user's function is called for one image after the other; it may draw from PyTorch's global
    generators, which are the client's own during its steps.
    """
    name = work.augment
    if name == NO_AUGMENTATION:
        return None
    if not is_import_string(name):
        random = augmentation_stream(name, work.draws)

        def change(inputs: Inputs) -> Inputs:
            images = _images_of(name, inputs)
            drawn = random.random((len(images), DRAWS))
            return change_images(name, images, torch.from_numpy(drawn))

        return change
    return partial(
        _change_each, name, import_callable("augment", name, "it must be a function of an image")
    )


def augmentation_stream(name: str, seed: int) -> np.random.Generator:
    """Return the generator of a client's draws in a round for a built-in augmentation.

    `seed` is the one of its model's random numbers.
    """
    if name not in BUILT_IN:
        raise ReportableError(
            f"augment = {name!r}: {did_you_mean(name, BUILT_IN)}there are {', '.join(BUILT_IN)};"
            " your own is named as in my_module:transform"
        )
    return np.random.default_rng(seed)


def change_images(name: str, images: Tensor, draws: Tensor) -> Tensor:
    """Return the images, shape (n, channels, height, width), as these draws change them.

    `draws` are numbers in [0, 1), shape (n, DRAWS). A shifted image is filled up with zeros.
    """
    height, width = images.shape[2:]
    down, right = (height // SHIFT, width // SHIFT) if name == CROP_FLIP else (0, 0)
    # Rounded on the CPU, because MPS has no float64, and float32 may round up to 1.
    choices = torch.tensor([2, 2 * down + 1, 2 * right + 1], dtype=torch.float64)
    chosen = move((draws * choices).long(), images.device)
    rows = torch.arange(height, device=images.device) + chosen[:, 1:2]
    columns = torch.arange(width, device=images.device).expand(len(images), -1)
    columns = torch.where(chosen[:, :1] == 0, columns.flip(1), columns) + chosen[:, 2:]
    images = pad(images, (right, right, down, down))
    count, channels = images.shape[:2]
    return images[
        torch.arange(count, device=images.device).view(-1, 1, 1, 1),
        torch.arange(channels, device=images.device).view(1, -1, 1, 1),
        rows.view(count, 1, height, 1),
        columns.view(count, 1, 1, width),
    ]


def change_together(name: str, inputs: Inputs, draws: Sequence[Tensor]) -> Tensor:
    """Return the images of k clients, shape (k, b, channels, height, width), as draws change them.

    Each client has draws of shape (its examples, DRAWS); images beyond these are padding.
    """
    images = _images_of(name, inputs, clients=1)
    count, batch = images.shape[:2]
    padded = torch.zeros(count, batch, DRAWS, dtype=torch.float64)
    for row, of_client in enumerate(draws):
        padded[row, : len(of_client)] = of_client
    return change_images(name, images.flatten(0, 1), padded.flatten(0, 1)).view(images.shape)


def _images_of(name: str, inputs: Inputs, clients: int = 0) -> Tensor:
    """Return inputs that are images; `clients` is the number of dimensions before a client's."""
    if isinstance(inputs, Tensor) and inputs.dim() == 4 + clients:
        return inputs
    if isinstance(inputs, Tensor):
        has = f"these have shape {tuple(inputs.shape[clients:])}"
    else:
        has = "these are several tensors"
    raise ReportableError(
        f"augment = {name!r} needs images, as one tensor of shape (examples, channels, height,"
        f" width), and {has}: leave augment out, or give this task a function of its own"
    )


def _change_each(name: str, transform: Callable[[Tensor], Tensor], inputs: Inputs) -> Tensor:
    if not isinstance(inputs, Tensor):
        raise ReportableError(
            f"augment = {name!r} is called with one tensor of an example, and here an example is"
            " several tensors: change them in the model or in collate_fn"
        )
    changed = [transform(image) for image in inputs]
    other = [tuple(image.shape) for image in changed if image.shape != inputs.shape[1:]]
    if other:
        raise ReportableError(
            f"augment = {name!r} makes shape {other[0]} of an example of shape"
            f" {tuple(inputs.shape[1:])}: it must keep the shape, as by a crop that pads, or is"
            " resized"
        )
    return torch.stack(changed)

"""Images as pixels from 0 to 1, as people see them: turned as their camera says, on white where transparent."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from .files.reasons import DataError

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

DEEP = ("I", "F")
"""How Pillow's modes of grey with more than eight bits begin."""

BITS_PER_SAMPLE = 0x0102
"""TIFF's tag of an image's depth, as 12 bits."""


def image_inputs(files: Sequence[Path], shape: tuple[int, ...]) -> torch.Tensor:
    """Return the pixels of images from 0 to 1, shape (n, channels, height, width); each is brought to that size."""
    inputs = np.empty((len(files), *shape), np.float32)
    for place, file in enumerate(files):
        inputs[place] = _opened(file, lambda image: _pixels(image, shape))
    return torch.from_numpy(inputs)


def size_of(file: Path) -> tuple[int, int]:
    """Return width and height of an image; raise DataError where it cannot be read."""
    return _opened(file, lambda image: image.size)


def _pixels(image: "Image.Image", shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return pixels from 0 to 1, shape (channels, height, width), by the range that the image's numbers can have."""
    from PIL import Image

    channels, height, width = shape
    deep, most = image.mode.startswith(DEEP), np.float32(255)
    if deep:
        numbers = np.asarray(image, np.float32)
        image, most = Image.fromarray(numbers), _find_range(image, numbers)
    elif image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    elif image.mode in ("1", "P"):  # whose numbers are no brightness, so that none lies between two of them
        image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if deep:
        return np.broadcast_to(np.asarray(image)[None] / most, shape)
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.float32) / most
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _find_range(image: "Image.Image", numbers: NDArray[np.float32]) -> np.float32:
    """Return the largest number that a grey image of this depth can have; ValueError where it has others."""
    bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, 16)
    bits = min(16, int(bits[0] if isinstance(bits, tuple) else bits))
    most = 2**bits - 1
    least, largest = float(numbers.min()), float(numbers.max())
    if image.mode == "F" or not 0 <= least <= largest <= most:
        raise ValueError(
            f"its pixels are of mode {image.mode}, from {least:g} to {largest:g}: at most 16 bits are read"
        )
    return np.float32(most)


def _opened(file: Path, look: Callable[["Image.Image"], T]) -> T:
    """Return what a look at an image gives; raise DataError where it cannot be read."""
    try:
        from PIL import Image, ImageOps  # imported late: an extra brings it
    except ImportError as error:
        raise DataError(f"{file}: images are read by Pillow: pip install 'fairbloom[images]'", "no-extra") from error
    try:
        with Image.open(file) as image:
            ImageOps.exif_transpose(image, in_place=True)
            return look(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} cannot be read as an image ({error}): save it again, or take it out of the folder",
            "unreadable",
        ) from error

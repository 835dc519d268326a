"""Images of a user's own: DIR/CLIENT/CLASS/IMAGE.png, or on a device of one client DIR/CLASS/IMAGE.png."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import did_you_mean
from fairbloom.protocol.settings import split_names

from ..partition import MIN_EXAMPLES, split, splits_of
from ..preprocessing import Preprocessing
from ..row_digests import RowsBehind, tell_apart
from ..task import Setup, Splits, Task
from .agreement import TargetSummary
from .folders import folders_in
from .reading.formats import PICTURES
from .reasons import DataError
from .shapes import AgreedShape, summarise, task_of
from .targets import as_targets, join_names, sort_classes

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV"}
"""Pillow's modes with at most eight bits a channel; others are grey with more."""

BITS_PER_SAMPLE = 0x0102
"""TIFF's tag of an image's depth, as 12 bits."""

ORIENTATION = 0x0112
"""The tag by which a camera says how a picture is to be turned; 1: not at all."""


def load(setup: Setup, *, size: int, grey: bool, classes: str) -> Task:
    """Return the clients of a folder of images."""
    folders = folders_in(setup.data_dir)
    if any(images_in(folder) for folder in folders.values()):  # of classes: they are all of one client
        own = Path(setup.data_dir).expanduser()
        folders = {own.resolve().name: own}
    stated = split_names(classes)

    def preprocessing(agreed: AgreedShape) -> Preprocessing:
        return agreed.preprocessing(resized=size > 0)

    return task_of(
        setup, tuple(folders), lambda name: Images(folders[name], name, setup, size, grey, stated), preprocessing
    )


def images_in(folder: Path) -> list[Path]:
    """Return the images of a folder in the order of names, hidden ones passed over."""
    there = (path for path in folder.iterdir() if path.suffix.lower() in PICTURES and not path.name.startswith("."))
    return sorted(there)


class Images:
    """The images of one client, which are decoded when they are learned from."""

    def __init__(self, folder: Path, client: str, setup: Setup, size: int, grey: bool, stated: tuple[str, ...]) -> None:
        self._folder, self._channels = folder, 1 if grey else 3
        found = {path.name: images_in(path) for path in sorted(folder.iterdir()) if path.is_dir()}
        self.files = [file for files in found.values() for file in files]
        self.labels = [name for name, files in found.items() for _ in files]
        if len(self.files) < MIN_EXAMPLES:
            raise DataError(
                f"{folder} has {len(self.files)} images ({', '.join(PICTURES)}) in {len(found)} folders of classes: at "
                f"least {MIN_EXAMPLES} are needed, four fifths for training and one for testing, as "
                f"{folder}/CLASS/1.png",
                "few-examples",
                examples=len(self.files),
                fewest=MIN_EXAMPLES,
            )
        self.classes = stated or tuple(sort_classes(set(self.labels)))
        if strange := [label for label in self.labels if label not in self.classes]:
            raise DataError(
                f"{folder / strange[0]} is a folder of none of the classes {join_names(self.classes)}: "
                f"{did_you_mean(strange[0], self.classes)}rename it, or state all classes by image-folder.classes",
                "strange-folder",
            )
        if len(self.classes) == 1:
            raise DataError(
                f"{folder} has images of one class alone, {self.labels[0]}: state all classes, as in "
                f"image-folder.classes={self.labels[0]},other, or leave this client out",
                "one-class",
            )
        self._size = (size, size) if size else self._size_of_all()
        self.parts = split(np.arange(len(self.files)), setup, client)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image."""
        return (self._channels, self._size[1], self._size[0])

    def _size_of_all(self) -> tuple[int, int]:
        """Return width and height, which all images must have."""
        sizes = list(map(size_of, self.files))
        usual, _ = Counter(sizes).most_common(1)[0]
        for file, size in zip(self.files, sizes, strict=True):
            if size != usual:
                raise DataError(
                    f"{file} has {size[0]}×{size[1]} pixels, and most images of its client {usual[0]}×{usual[1]}: "
                    "image-folder.size=32 brings all to 32×32",
                    "image-sizes",
                )
        return usual

    def about(self) -> Mapping[str, Any]:
        """Return the summary that the server gets of this client's data."""
        return summarise(len(self.parts.train), self.shape, TargetSummary("classes", self.classes))

    def behind(self) -> RowsBehind:
        """Return what tells the images apart: their files, whatever size and colours a run gives them."""
        named = list(zip(self.files, self.labels, strict=True))
        return RowsBehind(lambda digest: tell_apart(digest(f.read_bytes() + name.encode()) for f, name in named), {})

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the client."""
        self._check_colours()
        counts = Counter(self.labels)
        target = ", ".join(f"{name}: {counts[name]}" for name in self.classes[:12])
        shape = "×".join(map(str, self.shape))
        return {"train": len(self.parts.train), "test": len(self.parts.test), "shape": shape, "target": target}

    def _check_colours(self) -> None:
        """Raise DataError where an image has one colour throughout, as it has when its numbers are cut off."""
        flat = [file for file in self.files if _has_one_colour(image_inputs([file], self.shape))]
        if flat:
            more = f", as have {len(flat) - 1} others" if flat[1:] else ""
            raise DataError(
                f"{flat[0]} has one colour throughout{more}: save it again, or take it out of the folder", "one-colour"
            )

    def splits(self, agreed: AgreedShape) -> Splits:
        """Return pixels from 0 to 1 and classes, as the clients have agreed."""
        agreed.check(str(self._folder), self.shape)
        order = {name: place for place, name in enumerate(agreed.target.classes)}
        for label in self.labels:
            if label not in order:
                raise DataError(
                    f"{self._folder / label} is a folder of none of the agreed classes {join_names([*order])}: rename "
                    "it, or state all classes by image-folder.classes",
                    "strange-folder",
                )
        targets = as_targets([order[label] for label in self.labels], agreed.target)
        return splits_of(image_inputs(self.files, self.shape), targets, self.parts)


def image_inputs(files: Sequence[Path], shape: tuple[int, ...]) -> torch.Tensor:
    """Return the pixels of images from 0 to 1, shape (n, channels, height, width); each is brought to that size."""
    inputs = np.empty((len(files), *shape), np.float32)
    for place, file in enumerate(files):
        inputs[place] = _opened(file, lambda image: _pixels(image, shape))
    return torch.from_numpy(inputs)


def _has_one_colour(inputs: torch.Tensor) -> bool:
    channels = inputs[0].flatten(1)
    return bool((channels == channels[:, :1]).all())


def size_of(file: Path) -> tuple[int, int]:
    """Return width and height of an image; raise DataError where it cannot be read."""
    return _opened(file, lambda image: image.size)


def _pixels(image: "Image.Image", shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return pixels from 0 to 1, shape (channels, height, width), by the range that the image's numbers can have."""
    from PIL import Image

    channels, height, width = shape
    deep, most = image.mode not in EIGHT_BITS, np.float32(255)
    if deep:
        numbers = np.asarray(image, np.float32)
        image, most = Image.fromarray(numbers), _find_range(image, numbers)
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
            turned = image.getexif().get(ORIENTATION, 1) != 1
            return look(ImageOps.exif_transpose(image) if turned else image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} cannot be read as an image ({error}): save it again, or take it out of the folder",
            "unreadable",
        ) from error

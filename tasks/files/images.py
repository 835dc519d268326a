"""Images of a user's own: DIR/CLIENT/CLASS/IMAGE.png, or on a device of one client DIR/CLASS/IMAGE.png."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairbloom.errors import did_you_mean
from fairbloom.protocol.settings import split_names

from ..images import image_inputs, size_of
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


def _has_one_colour(inputs: torch.Tensor) -> bool:
    channels = inputs[0].flatten(1)
    return bool((channels == channels[:, :1]).all())

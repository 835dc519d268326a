"""Images of a user's own: DIR/CLIENT/CLASS/IMAGE.png, or on a device of one client DIR/CLASS/IMAGE.png."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.protocol.settings import split_names

from .. import models
from ..images import image_inputs, size_of
from ..partition import MIN_EXAMPLES, split, splits_of
from ..preprocessing import IMAGES, Preprocessing
from ..schema import ImageSchema, parse_image_schema
from ..task import Described, Setup, Splits, Task
from .folders import folders_in
from .infer import quote
from .reading.formats import PICTURES
from .reasons import DataError
from .targets import Target, as_targets, join_names, sort_classes


def infer(setup: Setup, *, size: int, grey: bool, classes: str) -> str:
    """Return the schema that folders of images suggest: all of their classes, and the size of most images."""
    folders = find_folders(setup.data_dir)
    names = {path.name for folder in folders.values() for path in folder.iterdir() if path.is_dir() and images_in(path)}
    found = split_names(classes) or sort_classes(names)
    if len(found) < 2:
        raise DataError(f"{setup.data_dir} has images of {len(found)} classes: two are needed, as CLIENT/CLASS/1.png")
    width, height = (size, size) if size else _usual_size(folders.values())
    written = ", ".join(map(quote, found))
    lines = [f"classes = [{written}]", f"size = [{width}, {height}]  # width and height in pixels"]
    lines += ["grey = true"] * grey + ["resize = true"] * (size > 0)
    return "\n".join(lines) + "\n"


def _usual_size(folders: Iterable[Path]) -> tuple[int, int]:
    """Return width and height of most images; an image that cannot be read is a fault of its client."""
    sizes: Counter[tuple[int, int]] = Counter()
    wrong = DataError("there is no image", "no-file")
    of_classes = (path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir())
    for image in (image for path in of_classes for image in images_in(path)):
        try:
            sizes[size_of(image)] += 1
        except DataError as error:
            wrong = error
    if not sizes:
        raise wrong
    return sizes.most_common(1)[0][0]


def find_folders(place: str) -> dict[str, Path]:
    """Return the folder of each client; one with folders of classes alone is of one client."""
    folders = folders_in(place)
    if any(images_in(folder) for folder in folders.values()):
        own = Path(place).expanduser()
        return {own.resolve().name: own}
    return folders


def load(setup: Setup, *, size: int, grey: bool, classes: str) -> Task:
    """Return the clients of a folder of images."""
    schema = parse_image_schema(setup.schema)
    folders = find_folders(setup.data_dir)
    target = Target(schema.classes)

    @lru_cache(maxsize=128)
    def images_of(client: str) -> Images:
        return Images(folders[client], client, setup, schema)

    def describe() -> Described:
        rows: list[Mapping[str, str | int]] = []
        for name in folders:
            try:
                rows.append({"client": name, **images_of(name).describe()})
            except FairbloomError as error:
                rows.append({"client": name, "problem": str(error)})
        return {"clients": rows}

    return Task(
        clients=tuple(folders),
        model=lambda: models.build(setup.model, schema.shape, target.outputs, setup.seed),
        loss=target.loss,
        splits=lambda name: images_of(name).splits(),
        scores=target.scores(),
        describe=describe,
        preprocessing=lambda client: _preprocessing_of(schema, client),
        classes=len(schema.classes),
        class_names=schema.classes,
        schema=setup.schema,
    )


def images_in(folder: Path) -> list[Path]:
    """Return the images of a folder in the order of names, hidden ones passed over."""
    there = (path for path in folder.iterdir() if path.suffix.lower() in PICTURES and not path.name.startswith("."))
    return sorted(there)


def _preprocessing_of(schema: ImageSchema, client: str) -> Preprocessing:
    """Return how images become inputs."""
    return Preprocessing(
        form=IMAGES,
        target="class",
        classes=schema.classes,
        shape=schema.shape,
        resized=schema.resize,
        client=client,
    )


class Images:
    """The images of one client, which are decoded when they are learned from."""

    def __init__(self, folder: Path, client: str, setup: Setup, schema: ImageSchema) -> None:
        self._folder, self._schema = folder, schema
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
        for label in self.labels:
            if label not in schema.classes:
                raise DataError(
                    f"{folder / label} is a folder of none of the classes {join_names(schema.classes)}: "
                    f"{did_you_mean(label, schema.classes)}rename it, or add it to the schema's classes",
                    "strange-folder",
                )
        self._check_sizes()
        self.parts = split(np.arange(len(self.files)), setup, client)

    def _check_sizes(self) -> None:
        """Raise DataError where an image has another size than the schema's, unless all are resized."""
        for file in () if self._schema.resize else self.files:
            if (size := size_of(file)) != self._schema.size:
                usual = "×".join(map(str, self._schema.size))
                raise DataError(
                    f"{file} has {size[0]}×{size[1]} pixels, and the schema says {usual}: resize = true in the schema, "
                    "or image-folder.size=32 without one, brings all to one size",
                    "image-sizes",
                )

    def describe(self) -> Mapping[str, str | int]:
        """Return what `fairbloom data` shows of the client."""
        self._check_colours()
        counts = Counter(self.labels)
        target = ", ".join(f"{name}: {counts[name]}" for name in self._schema.classes[:12])
        shape = "×".join(map(str, self._schema.shape))
        return {"train": len(self.parts.train), "test": len(self.parts.test), "shape": shape, "target": target}

    def _check_colours(self) -> None:
        """Raise DataError where an image has one colour throughout, as it has when its numbers are cut off."""
        flat = [file for file in self.files if _has_one_colour(image_inputs([file], self._schema.shape))]
        if flat:
            more = f", as have {len(flat) - 1} others" if flat[1:] else ""
            raise DataError(
                f"{flat[0]} has one colour throughout{more}: save it again, or take it out of the folder", "one-colour"
            )

    def splits(self) -> Splits:
        """Return pixels from 0 to 1 and classes."""
        order = {name: place for place, name in enumerate(self._schema.classes)}
        targets = as_targets([order[label] for label in self.labels], Target(self._schema.classes))
        return splits_of(image_inputs(self.files, self._schema.shape), targets, self.parts)


def _has_one_colour(inputs: torch.Tensor) -> bool:
    channels = inputs[0].flatten(1)
    return bool((channels == channels[:, :1]).all())

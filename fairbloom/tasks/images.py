"""The task `image-folder`: DIR/CLIENT/CLASS/IMAGE.png, or for one client DIR/CLASS/IMAGE.png.

Pixels are from 0 to 1, as people see them: turned by their EXIF orientation, transparent ones on
white.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fairbloom.errors import install_command
from fairbloom.protocol.settings import split_names
from fairbloom.system.files import expand_home
from fairbloom.tables import DataError
from fairbloom.tables.cells import sort_classes
from fairbloom.tables.folders import count_endings, folders_in, is_visible
from fairbloom.tables.positive import ask_about_positive, choose_positive
from fairbloom.tables.preprocessing import IMAGES, Preprocessing
from fairbloom.tables.reasons import raise_faults
from fairbloom.tables.schema import ImageSchema, parse_image_schema, validate
from fairbloom.tables.toml import Note, Place, write_keys
from fairbloom.text import join_first, plural, text_if

from . import models
from .catalogue import TASKS
from .partition import MIN_EXAMPLES, splits_of
from .sides import count_missing, split_by_sides
from .targets import POSITIVE_WORDS, Target, as_targets
from .task import Setup, Splits, Suggested, Task

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

# How many times as bright as elsewhere a client's brightest pixels may be without a remark, and how
# many of its images are measured.
TIMES_BRIGHTER = 3.0
IMAGES_LOOKED_AT = 10

# The endings of images.
PICTURES = TASKS["image-folder"].reads


# Clients ------------------------------------------------------------------------------------------


def infer(
    setup: Setup,
    *,
    size: int,
    grey: bool,
    classes: str,
    without: Collection[str] = (),
    advise: bool = False,
) -> Suggested:
    """Return the schema that folders of images suggest: all classes, and the most common size.

    The folders of the clients in `without` are not read.
    """
    folders = {
        name: folder for name, folder in find_folders(setup.data_dir).items() if name not in without
    }
    found = [_images_by_class(folder) for folder in folders.values()]
    named = split_names(classes) or sort_classes(set[str]().union(*found))
    if len(named) < 2:
        for folder in folders.values():
            raise_faults(_find_misplaced(folder))
        raise DataError(
            f"{setup.data_dir} has images of {plural(len(named), '1 class', 'no class')}: two are"
            " needed, as CLIENT/CLASS/1.png"
        )
    files = [file for each in found for images in each.values() for file in images]
    width, height = (size, size) if size else _most_common_size(files)
    stated: dict[str, Any] = {"classes": named, "size": (width, height)}
    notes: dict[Place, list[Note]] = {
        ("size",): [Note("width and height in pixels", behind=True)],
    }
    if len(named) == 2:
        images_of = Counter(file.parent.name for file in files)
        counts = [images_of[name] for name in named]
        stated["positive"], reason = choose_positive(named, counts, POSITIVE_WORDS)
        notes["positive",] = [Note(ask_about_positive(reason), behind=True)]
    if grey:
        stated["grey"] = True
    if size:
        stated["resize"] = True
    lines = write_keys(validate(ImageSchema, stated), notes)
    return Suggested("\n".join([*lines, ""]))


def _most_common_size(files: Sequence[Path]) -> tuple[int, int]:
    """Return width and height of most images; unreadable ones are left to their clients."""
    sizes: Counter[tuple[int, int]] = Counter()
    for file in files:
        try:
            sizes[size_of(file)] += 1
        except DataError as error:
            wrong = error
    if not sizes:
        raise wrong
    return sizes.most_common(1)[0][0]


def find_folders(place: str) -> dict[str, Path]:
    """Return the folder of each client; a folder of class folders belongs to one client.

    Raise DataError for images that lie directly in the folder, and so belong to no client.
    """
    folders = folders_in(place)
    if not folders:
        return {}
    own = expand_home(place)
    directly = 0
    below = 0
    for folder in folders.values():
        directly += len(_images_in(folder))
        below += sum(map(len, _images_by_class(folder).values()))
    if directly > below:  # they are folders of classes, maybe with a stray folder below
        return {own.resolve().name: own}
    stray = _images_in(own)
    if stray:
        raise_faults([_describe_stray(stray)])
    return folders


def _visible_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_visible(path.name) and not path.is_dir())


def _images_in(folder: Path) -> list[Path]:
    return [path for path in _visible_files(folder) if path.suffix.lower() in PICTURES]


def _images_by_class(folder: Path) -> dict[str, list[Path]]:
    images = {path.name: _images_in(path) for path in _class_folders(folder)}
    return {name: files for name, files in images.items() if files}


def _class_folders(folder: Path) -> list[Path]:
    """Return the visible folders in a client's folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path.name))


def _find_misplaced(folder: Path) -> list[DataError]:
    """Return as faults the files in a client's folder that would be left out without a word."""
    classes = _class_folders(folder)
    files = [path for of_class in classes for path in _visible_files(of_class)]
    others = [path for path in files if path.suffix.lower() not in PICTURES]
    faults: list[DataError] = []
    if others:
        faults.append(
            DataError(
                f"{folder}: files in the folders of its classes are no pictures that are read,"
                f" {count_endings(others)}: save them as .png, or take them out",
                "other-files",
            )
        )
    stray = _images_in(folder)
    for of_class in classes:
        stray += _images_below(of_class)
    if stray:
        faults.append(_describe_stray(stray))
    return faults


def _images_below(of_class: Path) -> list[Path]:
    """Return the images in visible folders of a class's folder, sorted."""
    images = []
    for path in sorted(of_class.rglob("*")):
        is_image = path.parent != of_class and path.suffix.lower() in PICTURES
        if is_image and all(map(is_visible, path.relative_to(of_class).parts)):
            images.append(path)
    return images


def _describe_stray(images: Sequence[Path]) -> DataError:
    """Return as a fault the images that lie in no class's folder, one at least."""
    more = text_if(len(images) > 1, f", as {len(images) - 1} more pictures do")
    return DataError(
        f"{images[0]} lies in no class's folder{more}: move it to CLIENT/CLASS, or take it out",
        "stray-picture",
    )


def load(setup: Setup, *, size: int, grey: bool, classes: str) -> Task:
    """Return the clients of a folder of images."""
    schema = parse_image_schema(setup.schema_)
    folders = find_folders(setup.data_dir)
    target = Target(schema.classes)

    def preprocessing(client: str) -> Preprocessing:
        return Preprocessing(
            form=IMAGES,
            target="class",
            classes=schema.classes,
            shape=schema.shape,
            resized=schema.resize,
            client=client,
        )

    return Task(
        clients=tuple(folders),
        model=lambda: models.build(
            setup.model, schema.shape, target.outputs, setup.seed, norm=setup.norm
        ),
        loss=target.loss,
        splits=lambda client: _load_client(folders[client], client, setup, schema),
        scores=target.scores(),
        remark=lambda: [*_remark_on_brightness(folders, schema)],
        preprocessing=preprocessing,
        classes=len(schema.classes),
        class_names=schema.classes,
        positive=schema.classes.index(schema.positive) if schema.positive else None,
        schema=setup.schema_,
    )


def _load_client(folder: Path, client: str, setup: Setup, schema: ImageSchema) -> Splits:
    """Return a client's pixels and classes; raise DataError if its images contradict the schema."""
    found = _images_by_class(folder)
    files = [file for each in found.values() for file in each]
    faults = _find_misplaced(folder)
    if len(files) < MIN_EXAMPLES:
        faults.append(
            DataError(
                f"{folder} has {len(files)} images: at least {MIN_EXAMPLES} are needed, four fifths"
                f" for training and one for testing, as {folder}/CLASS/1.png",
                "few-examples",
                examples=len(files),
                fewest=MIN_EXAMPLES,
            )
        )
    for name in found:
        if name not in schema.classes:
            faults.append(
                DataError(
                    f"{folder / name} is not one of the classes {join_first(schema.classes)}:"
                    " rename it, or add it to the schema's classes",
                    "strange-folder",
                )
            )
    faults += find_unfit(
        files,
        None if schema.resize else schema.size,
        f"the schema says {schema.size[0]}×{schema.size[1]}: resize = true in the schema, or"
        " image-folder.size=32 without one, brings all to one size",
    )
    raise_faults(faults)
    parts, version = split_by_sides(
        len(files),
        setup,
        client,
        lambda: (file.parent.name.encode() + b"/" + file.read_bytes() for file in files),
    )
    inputs = image_inputs(files, schema.shape)
    classes = [schema.classes.index(file.parent.name) for file in files]
    splits = splits_of(inputs, as_targets(classes, Target(schema.classes)), parts)
    missing = count_missing(len(files), setup, client, "image")
    return replace(splits, version=version, missing=missing)


def _remark_on_brightness(
    folders: Mapping[str, Path], schema: ImageSchema
) -> Iterator[dict[str, str | int]]:
    """Yield a remark on each client with images that are far darker, or brighter, than others'."""
    brightest: dict[str, float] = {}
    for client, folder in folders.items():
        files = [file for each in _images_by_class(folder).values() for file in each]
        some = files[:: 1 + len(files) // IMAGES_LOOKED_AT]
        with suppress(DataError):  # named where the client's images are loaded
            pixels = image_inputs(some, schema.shape)
            brightest[client] = float(pixels.amax(dim=(1, 2, 3)).median())
    for client, own in brightest.items():
        others = [each for name, each in brightest.items() if name != client]
        usual = float(np.median(others or [own]))
        if max(own, usual) > TIMES_BRIGHTER * min(own, usual):
            yield {
                "column": "",
                "client": client,
                "remark": f"the brightest pixel of its images is {own:.3g} of what their files"
                f" can hold, and {usual:.3g} elsewhere: if it is 12 bits in 16, save images in"
                " their full range",
            }


# Pixels -------------------------------------------------------------------------------------------


def image_inputs(files: Sequence[Path], shape: tuple[int, ...]) -> torch.Tensor:
    """Return pixels from 0 to 1, shape (n, channels, height, width); images are resized to it."""
    inputs = np.empty((len(files), *shape), np.float32)
    for place, file in enumerate(files):
        inputs[place] = _open(file, lambda image: _read_pixels(image, shape))
    return torch.from_numpy(inputs)


def find_unfit(
    files: Sequence[Path], size: tuple[int, int] | None, expected: str
) -> Iterator[DataError]:
    """Yield as faults the images that cannot be read, or that do not have the `size`, if any.

    Messages end with `expected`, which says who needs it.
    """
    for file in files:
        try:
            found = size_of(file)
        except DataError as error:
            yield error
            continue
        if size not in (None, found):
            yield DataError(
                f"{file} has {found[0]}×{found[1]} pixels, and {expected}", "image-sizes"
            )


def size_of(file: Path) -> tuple[int, int]:
    """Return width and height of an image; raise DataError if it cannot be read."""
    return _open(file, lambda image: image.size)


def _open(file: Path, look: Callable[["Image.Image"], T]) -> T:
    """Return the result of `look` for an image; raise DataError if it cannot be read."""
    try:
        from PIL import Image, ImageOps  # imported late: only the extra `images` installs it
    except ImportError as error:
        raise DataError(
            f"{file}: images are read by Pillow: {install_command('images')}", "no-extra"
        ) from error
    try:
        with Image.open(file) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format != "MPO":  # a camera's JPEG with a preview
                raise DataError(
                    f"{file} has {frames} pictures: save each of them in a file of its own",
                    "several-pictures",
                )
            ImageOps.exif_transpose(image, in_place=True)
            return look(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} cannot be read as an image ({error}): save it again, or take it out of the"
            " folder",
            "unreadable",
        ) from error


def _read_pixels(image: "Image.Image", shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return pixels from 0 to 1, by the range of the image's mode; shape as `shape`."""
    from PIL import Image

    channels, height, width = shape
    mode = plural(channels, "L", "RGB")
    most = np.float32(255)
    if image.mode.startswith(("I", "F")):  # grey with more than eight bits
        numbers = np.asarray(image, np.float32)
        bits = getattr(image, "tag_v2", {}).get(0x0102, 16)  # TIFF's tag of an image's depth
        if isinstance(bits, tuple):
            bits = bits[0]
        most = np.float32(2 ** min(16, int(bits)) - 1)
        least = float(numbers.min())
        largest = float(numbers.max())
        if image.mode == "F" or not 0 <= least <= largest <= most:
            raise ValueError(
                f"its pixels of mode {image.mode} are from {least:g} to {largest:g}: at most 16"
                " bits are read"
            )
        white_is = getattr(image, "tag_v2", {}).get(0x0106)
        if white_is == 0:  # white is zero, which Pillow ignores here
            numbers = most - numbers
        image = Image.fromarray(numbers)
        mode = "F"
    elif image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    elif image.mode in ("1", "P"):
        image = image.convert(mode)  # before resizing: the numbers of a palette have no mean
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image.convert(mode), np.float32) / most
    return np.broadcast_to(pixels, shape) if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

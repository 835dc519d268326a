"""New data in files: what is read of them, and the inputs that a model gets, batch by batch."""

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.client.training import EVALUATION_BATCH
from fairbloom.errors import FairbloomError
from fairbloom.tasks.images import image_inputs, size_of
from fairbloom.tasks.preprocessing import ARRAYS, TABLE, Preprocessing
from fairbloom.tasks.schema import Decimal
from fairbloom.tasks.tables.folders import PICTURES
from fairbloom.tasks.tables.read import Table, read_file
from fairbloom.tasks.tables.reasons import DataError
from fairbloom.tasks.tables.targets import join_names

from .output_rows import list_problems, texts_of, values_of

IMAGES_AT_ONCE = 256


class NewData(NamedTuple):
    """Batches of inputs, the columns of texts that stand next to the predictions, and the decimal mark of these."""

    columns: Mapping[str, Iterable[str]]
    batches: Iterator[Tensor]
    decimal: Decimal = "."


def read_new_data(path: Path, preprocessing: Preprocessing) -> NewData:
    """Return the new data in a file, or of images in a folder."""
    if preprocessing.form == TABLE:
        return data_of_table(
            read_file(path, preprocessing.dictionary.file(path.name)), preprocessing
        )
    return (
        _read_arrays(path, preprocessing)
        if preprocessing.form == ARRAYS
        else _read_images(path, preprocessing)
    )


def data_of_table(table: Table, preprocessing: Preprocessing) -> NewData:
    """Return the new data in the rows of a table."""
    values = values_of(table, preprocessing)
    batches = (
        preprocessing.inputs(
            {name: each[start : start + EVALUATION_BATCH] for name, each in values.items()}
        )
        for start in range(0, len(table), EVALUATION_BATCH)
    )
    return NewData({name: texts_of(table, name) for name in table.columns}, batches, table.decimal)


def _read_arrays(path: Path, preprocessing: Preprocessing) -> NewData:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name == "x"}
            names = join_names(sorted(file.files)) or "nothing"
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise FairbloomError(
            f"{path} cannot be read ({error}): write it again, by numpy.savez"
        ) from error
    if "x" not in arrays:
        raise FairbloomError(
            f"{path} holds {names}: it needs the array x, as numpy.savez(file, x=…) writes it"
        )
    x: NDArray[Any] = arrays["x"]
    if x.ndim < 1 or not len(x) or x[0].size != np.prod(preprocessing.shape):
        raise FairbloomError(
            f"{path}: x has shape {x.shape}, and the model takes one or more examples of"
            f" {'×'.join(map(str, preprocessing.shape))} numbers each: the first dimension is that"
            " of examples"
        )
    try:
        inputs = preprocessing.array_inputs(x)
    except ValueError as error:
        raise FairbloomError(f"{path}: x {error}") from error
    strange = np.flatnonzero(~np.isfinite(inputs.numpy().reshape(len(x), -1)).all(axis=1))
    if len(strange):
        problems = [
            (int(row), f"example {row} holds NaN, or a number that float32 cannot hold")
            for row in strange
        ]
        raise FairbloomError(list_problems(str(path), problems, len(x), "examples"))
    return NewData({"example": map(str, range(len(x)))}, iter(inputs.split(EVALUATION_BATCH)))  # type: ignore[no-untyped-call]


def _read_images(path: Path, preprocessing: Preprocessing) -> NewData:
    """Return the images in a folder and all below it, hidden ones passed over, by their paths there; or the one.

    FairbloomError: there is none, or some cannot be read, or are of another size and would not be
    resized.
    """
    if not path.exists():
        raise FairbloomError(f"{path} cannot be read: there is no such folder or image")
    there = (
        [path]
        if path.is_file()
        else [each for each in path.rglob("*") if each.suffix.lower() in PICTURES]
    )
    folder = path.parent if path.is_file() else path
    named = {each.relative_to(folder).as_posix(): each for each in there if each.is_file()}
    names = sorted(
        name
        for name in named
        if path.is_file() or not any(part[0] == "." for part in name.split("/"))
    )
    if not names:
        raise FairbloomError(f"{path} has no images ({', '.join(PICTURES)})")
    files = [named[name] for name in names]
    problems = []
    _, height, width = preprocessing.shape
    for place, file in enumerate(files):
        try:
            size = size_of(file)
        except DataError as error:
            problems.append((place, str(error)))
            continue
        if size != (width, height) and not preprocessing.resized:
            problems.append(
                (
                    place,
                    f"{file} has {size[0]}×{size[1]} pixels, and the model takes {width}×{height}",
                )
            )
    if problems:
        raise FairbloomError(list_problems(str(path), problems, len(files), "images"))
    starts = range(0, len(files), IMAGES_AT_ONCE)
    batches = (
        image_inputs(files[start : start + IMAGES_AT_ONCE], preprocessing.shape) for start in starts
    )
    return NewData({"file": names}, batches)

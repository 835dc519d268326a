"""Read new data from files, and make the inputs of a model in batches."""

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from fairbloom import tables
from fairbloom.client.training import EVALUATION_BATCH
from fairbloom.errors import FairbloomError
from fairbloom.logs import log
from fairbloom.tables.folders import count_endings, is_visible
from fairbloom.tables.moved import find_moved
from fairbloom.tables.preprocessing import ARRAYS, NUMBER, TABLE, Preprocessing
from fairbloom.tables.reading import ReadTable
from fairbloom.tables.schema import EVERY_FILE, Decimal
from fairbloom.tasks.images import PICTURES, find_unfit, image_inputs
from fairbloom.text import join_first

from .output_rows import list_problems, texts_of, true_values_of, values_of

IMAGES_AT_ONCE = 256


class NewData(NamedTuple):
    """Batches of inputs, and the columns of text to write next to the predictions.

    `decimal` is the decimal mark of these columns, and `delimiter` separates them in their file.
    `truth` has the target in the schema's words, as predictions are; None if the data have none.
    `encoding` is that of a file with the predictions, if they are not in ASCII.
    """

    columns: Mapping[str, Iterable[str]]
    batches: Iterator[Tensor]
    decimal: Decimal = "."
    delimiter: str = ","
    truth: NDArray[Any] | None = None
    encoding: str = "utf-8"


def read_new_data(
    path: Path, preprocessing: Preprocessing, rows: NDArray[np.int64] | None = None
) -> NewData:
    """Return the new data in a file, or the images in a folder; of a table, only some rows."""
    if preprocessing.form == TABLE:
        table = tables.read(path, preprocessing.dictionary.file(path.name, preprocessing.client))
        return data_of_table(table if rows is None else table.take(rows), preprocessing)
    read = _read_arrays if preprocessing.form == ARRAYS else _read_images
    return read(path, preprocessing)


def data_of_table(table: ReadTable, preprocessing: Preprocessing) -> NewData:
    """Return the new data in the rows of a table."""
    values = values_of(table, preprocessing)
    _warn_of_moved(table, values, preprocessing)

    def batch(start: int) -> Tensor:
        chosen = {name: each[start : start + EVALUATION_BATCH] for name, each in values.items()}
        return from_numpy(preprocessing.inputs(chosen))

    batches = map(batch, range(0, len(table), EVALUATION_BATCH))
    # Excel takes UTF-8 without a mark for the computer's old encoding. Files that Excel may have
    # written get predictions with a mark: workbooks, and texts that are not in plain UTF-8.
    is_plain = table.file.encoding.lower() in ("utf-8", "utf8")
    return NewData(
        {name: texts_of(table, name) for name in table.columns},
        batches,
        table.decimal,
        table.file.delimiter or ",",
        true_values_of(table, preprocessing),
        "utf-8" if is_plain and table.path.suffix.lower() != ".xlsx" else "utf-8-sig",
    )


def _warn_of_moved(
    table: ReadTable, values: Mapping[str, NDArray[Any]], preprocessing: Preprocessing
) -> None:
    """Log the columns that seem to be in another unit than in training."""
    # no key under `files` means a data frame
    key = f"{EVERY_FILE}/{table.path.name}" if table.path.suffix else ""
    for column in preprocessing.columns:
        if column.kind == NUMBER and column.name not in preprocessing.per_client:
            training = (column.center, column.scale)
            moved = find_moved(column.name, values[column.name], training)
            if moved is not None:
                log.warning("%s: %s", table.path, moved.say(table.file.field(column.name), key))


def _read_arrays(path: Path, preprocessing: Preprocessing) -> NewData:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name == "x"}
            names = join_first(sorted(file.files)) or "nothing"
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
    is_finite = np.isfinite(inputs.reshape(len(x), -1))
    invalid = np.flatnonzero(~is_finite.all(axis=1))
    if len(invalid):
        problems = [
            (int(row), f"example {row} holds NaN, or a number that float32 cannot hold")
            for row in invalid
        ]
        raise FairbloomError(list_problems(str(path), problems, len(x), "examples"))
    batches = from_numpy(inputs).split(EVALUATION_BATCH)  # type: ignore[no-untyped-call]
    numbers = map(str, range(len(x)))
    return NewData({"example": numbers}, iter(batches))


def _read_images(path: Path, preprocessing: Preprocessing) -> NewData:
    """Return the visible images in a folder and below, by their paths there, or a single image.

    Raise FairbloomError if there are none, or for images that cannot be read, or that have another
    size and are not resized.
    """
    if not path.exists():
        raise FairbloomError(f"{path} cannot be read: no such folder or image")
    by_name = {path.name: path} if path.is_file() else _find_images(path)
    if not by_name:
        raise FairbloomError(f"{path} has no images")
    names = sorted(by_name)
    files = [by_name[name] for name in names]
    height, width = preprocessing.shape[1:]
    size = None if preprocessing.resized else (width, height)
    unfit = find_unfit(files, size, f"the model takes {width}×{height}")
    problems = [*enumerate(map(str, unfit))]
    if problems:
        raise FairbloomError(list_problems(str(path), problems, len(files), "images"))
    batches = (
        image_inputs(files[start : start + IMAGES_AT_ONCE], preprocessing.shape)
        for start in range(0, len(files), IMAGES_AT_ONCE)
    )
    return NewData({"file": names}, batches)


def _find_images(folder: Path) -> dict[str, Path]:
    """Return the visible images in a folder and below, by their paths there.

    Raise FairbloomError if there are other files.
    """
    files: dict[str, Path] = {}
    for file in folder.rglob("*"):
        path = file.relative_to(folder)
        if all(map(is_visible, path.parts)) and not file.is_dir():
            files[path.as_posix()] = file
    others = [file for file in files.values() if file.suffix.lower() not in PICTURES]
    if others:
        raise FairbloomError(
            f"{folder} has files that are no pictures that are read, {count_endings(others)}: save"
            " them as .png, or take them out"
        )
    return files

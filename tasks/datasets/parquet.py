"""Tables of the Hugging Face hub: parquet files with columns of labels and of images."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.errors import FairbloomError

from .downloads import import_library


def read_columns(path: Path, names: Sequence[str]) -> Mapping[str, Any]:
    """Return columns of a parquet file, as Arrow's arrays, by their names; of images, their files' content."""
    parquet = import_library("pyarrow.parquet")  # imported late: pictures in other formats need none of it
    try:
        with parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
            table = file.read(columns=[name for name in names if name in there])
    except (OSError, ValueError) as error:
        raise FairbloomError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if lacking := [name for name in names if name not in there]:
        raise FairbloomError(
            f"{path} has the columns {', '.join(there)}, and {lacking[0]} is needed: put the original in its place"
        )
    return {name: _extract_content(table.column(name).combine_chunks()) for name in names}


def _extract_content(column: Any) -> Any:
    """Return a column, and of one of images, each with its content and its path, the contents."""
    fields = [column.type.field(place).name for place in range(column.type.num_fields)]
    return column.field("bytes") if "bytes" in fields else column


def to_labels(path: Path, name: str, column: Any, classes: int) -> NDArray[np.int64]:
    """Return a column of labels."""
    labels = column.to_numpy(zero_copy_only=False)
    if labels.dtype.kind not in "iu" or not len(labels) or not 0 <= labels.min() <= labels.max() < classes:
        raise FairbloomError(
            f"{path}: the column {name} must hold whole numbers from 0 to {classes - 1}: put the original in its place"
        )
    return labels.astype(np.int64)  # type: ignore[no-any-return]


def decode(path: Path, column: Any, rows: Sequence[int], mode: str, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return images of a column, shape (n, channels, height, width); `mode` is Pillow's, "L" or "RGB"."""
    image_file = import_library("PIL.Image", "datasets")
    channels, height, width = shape
    images = np.empty((len(rows), height, width, channels), np.uint8)
    for place, row in enumerate(rows):
        try:
            with image_file.open(BytesIO(column[row].as_py())) as image:
                pixels = np.asarray(image.convert(mode))
        except (OSError, TypeError, ValueError, image_file.DecompressionBombError) as error:
            raise FairbloomError(f"{path}: row {row} holds no image that can be read ({error})") from error
        if pixels.shape[:2] != (height, width):
            raise FairbloomError(f"{path}: row {row} holds an image of {pixels.shape[:2]} pixels, not {height, width}")
        images[place] = pixels.reshape(height, width, channels)
    return images.transpose(0, 3, 1, 2)

"""Read parquet files, as the Hugging Face hub has them: columns of labels and images."""

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet

from fairbloom.errors import FairbloomError, install_command


def read_columns(path: Path, *names: str) -> Mapping[str, Any]:
    """Return columns of a parquet file by name, as Arrow arrays; images as their files' bytes."""
    try:
        table = parquet.ParquetFile(path).read(columns=names).select(names)
        columns = {name: table.column(name).combine_chunks() for name in names}
        return {
            name: column.field("bytes") if column.type.num_fields else column
            for name, column in columns.items()
        }
    except (OSError, ValueError, KeyError) as error:
        raise _explain(path, error) from error


def read_batches(path: Path, *names: str) -> Iterator[Any]:
    """Yield columns of a parquet file as Arrow batches of rows: it may exceed the memory."""
    try:
        yield from (
            batch.select(names) for batch in parquet.ParquetFile(path).iter_batches(columns=names)
        )
    except (OSError, ValueError, KeyError) as error:
        raise _explain(path, error) from error


def _explain(path: Path, error: Exception) -> FairbloomError:
    reason = " ".join(str(error).split())
    return FairbloomError(f"{path} cannot be read ({reason}): put the original in its place")


def to_labels(path: Path, labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Return labels, shape (n,); raise FairbloomError if they are not from 0 to `classes` - 1."""
    if (
        labels.dtype.kind not in "iu"
        or labels.ndim != 1
        or not len(labels)
        or not 0 <= labels.min() <= labels.max() < classes
    ):
        raise FairbloomError(
            f"{path}: labels must be whole numbers from 0 to {classes - 1}: put the original in its"
            " place"
        )
    return labels.astype(np.int64)


def decode(
    path: Path, column: Any, rows: Sequence[int], mode: str, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Return images of a column, shape (n, channels, height, width); `mode` is "L" or "RGB"."""
    try:
        from PIL import Image  # imported late: only the extra `images` installs it
    except ImportError as error:
        raise FairbloomError(
            f"{path}: images are read by Pillow: {install_command('images')}"
        ) from error
    channels, height, width = shape
    images = np.empty((len(rows), height, width, channels), np.uint8)
    for place, row in enumerate(rows):
        try:
            with Image.open(BytesIO(column[row].as_py())) as image:
                if image.size != (width, height):
                    raise ValueError(f"it has {image.width}×{image.height}")
                images[place] = np.asarray(image.convert(mode)).reshape(height, width, channels)
        except (OSError, TypeError, ValueError, Image.DecompressionBombError) as error:
            raise FairbloomError(
                f"{path}: row {row} holds no image of {height}×{width} pixels ({error})"
            ) from error
    return images.transpose(0, 3, 1, 2)

"""Types of arrays, chunks of flat vectors, and their norm."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# A model's arrays by name: parameters, and buffers such as BatchNorm's statistics.
Model = Mapping[str, NDArray[Any]]

# Columns that are processed at once: m rows of them fit into the processor's cache.
CHUNK_COLUMNS = 16384

# A float64 sum of squares in this range has lost nothing to overflow or underflow.
EXACT_SQUARES = (1e-200, 1e300)


def forms_of(model: Model) -> dict[str, object]:
    """Return the dtype and the shape of each array of a model."""
    return {name: (array.dtype, array.shape) for name, array in model.items()}


def column_chunks(size: int) -> Iterator[slice]:
    """Return all columns of vectors of this size, CHUNK_COLUMNS at a time."""
    starts = range(0, size, CHUNK_COLUMNS)
    return (slice(start, min(start + CHUNK_COLUMNS, size)) for start in starts)


def split_at(ends: Sequence[int], chunk: slice) -> Iterator[tuple[int, slice]]:
    """Split a chunk of columns at the `ends`: yield each part's number, and its columns.

    The columns count from the start of the chunk. A chunk is split and not shortened at an end: so
    a model of many small arrays has as few chunks as one of few large arrays.
    """
    number = bisect_right(ends, chunk.start)
    start = chunk.start
    while start < chunk.stop:
        stop = min(ends[number], chunk.stop)
        if start < stop:
            yield number, slice(start - chunk.start, stop - chunk.start)
        number = number + 1
        start = stop


def norm(values: NDArray[Any], less: NDArray[Any] | None = None) -> float:
    """Return ‖values‖ of a flat vector, or ‖values − less‖ of two.

    It is accumulated in float64, and does not overflow.
    """
    with np.errstate(over="ignore"):
        square = sum(float(np.dot(part, part)) for part in _differences(values, less))
    if EXACT_SQUARES[0] < square < EXACT_SQUARES[1]:
        return math.sqrt(square)
    # A second pass, scaled by the largest entry.
    largest = max((float(np.abs(part).max()) for part in _differences(values, less)), default=0.0)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = (part / largest for part in _differences(values, less))
    return largest * math.sqrt(sum(float(np.dot(part, part)) for part in scaled))


def _differences(values: NDArray[Any], less: NDArray[Any] | None) -> Iterator[FloatArray]:
    """Yield `values` − `less` in float64, CHUNK_COLUMNS entries at a time."""
    with np.errstate(over="ignore"):
        for chunk in column_chunks(values.size):
            part = values[chunk].astype(np.float64)
            if less is not None:
                part -= less[chunk]
            yield part

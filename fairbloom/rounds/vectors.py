"""Flat vectors, their Gram matrix and their weighted sum, in one pass of chunks each."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbloom.protocol.bfloat16 import BITS, widen
from fairbloom.system.machine import processors_here

from . import arrays
from .arrays import FloatArray, Model, column_chunks, split_at
from .layout import Layout

T = TypeVar("T")

# Chunks that a thread processes before it asks for more: asking takes as long as a chunk of a few
# updates.
CHUNKS_PER_TASK = 16

# From this many columns on, the squares of each row are summed in a call of its own.
WIDE_COLUMNS = 4096

# Up to this many numbers (rows · columns) are multiplied in float64. Beyond, they are multiplied in
# the model's dtype within a chunk, and summed over chunks in float64: an error of 1.5e-7 in a
# cosine, in a fraction of the time.
EXACT_NUMBERS = 2_000_000

# Two vectors count as equal up to this squared distance, relative to the smaller of their squared
# norms: it is the rounding of products in float64, and in the model's dtype.
ALIKE_SHARE = 1e-13, 1e-6

# A vector, or a part of one, with a smaller squared norm counts as zero: below the normal numbers,
# precision is lost.
SMALLEST_SQUARE = 1e-300


@dataclass(frozen=True)
class Vectors:
    """Flat vectors of one size, as the rows of blocks.

    Attributes
    ----------
    blocks
        Matrices in the model's dtype, each of shape (rows, d), in this process or on a device, or
        models that compute their updates when these are read.
    needs_float64
        Whether the largest entry of a row is so large, or so small, that products in float32 could
        overflow or underflow.
    """

    blocks: tuple[NDArray[Any] | Borrowed | DeviceRows, ...]
    needs_float64: bool = False

    @classmethod
    def of(cls, values: NDArray[Any], *, needs_float64: bool = False) -> Vectors:
        """Return one vector of shape (d,)."""
        return cls((values[None, :],), needs_float64)

    def __len__(self) -> int:
        """Return m, the number of vectors."""
        return sum(map(len, self.blocks))

    @classmethod
    def concat(cls, parts: Sequence[Vectors]) -> Vectors:
        """Return the vectors of several objects, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            tuple(block for part in parts for block in part.blocks),
            any(part.needs_float64 for part in parts),
        )

    def __getitem__(self, place: int) -> Vectors:
        """Return the vector at a place as the only one."""
        row = place
        for block in self.blocks:
            if row < block.shape[0]:
                only = block.only(row) if isinstance(block, Borrowed) else block[row : row + 1]
                return Vectors((only,), self.needs_float64)
            row -= block.shape[0]
        raise IndexError(place)

    @property
    def size(self) -> int:
        """d, the entries of each vector."""
        return self.blocks[0].shape[1] if self.blocks else 0

    @property
    def on_device(self) -> DeviceRows | None:
        """The first block on a device, which computes the products and sums of all blocks."""
        return next((block for block in self.blocks if isinstance(block, DeviceRows)), None)

    @property
    def in_float64(self) -> bool:
        """Whether products are computed in float64: for few numbers, if needed, or on a device."""
        few = len(self) * self.size <= EXACT_NUMBERS
        return few or self.needs_float64 or self.on_device is not None

    def map_chunks(self, exact: bool, work: Callable[[slice, NDArray[Any]], T]) -> Iterator[T]:
        """Yield the results of `work` on each chunk of columns of all rows, in order.

        A chunk has the shape (m, ≤ CHUNK_COLUMNS), in float64 if `exact`. Large borrowed updates
        are computed by threads, one for each processor core.
        """
        dtype = np.dtype(np.float64) if exact else self.blocks[0].dtype
        first, *others = self.blocks
        direct = (  # its columns need no copy
            first if not others and isinstance(first, np.ndarray) and first.dtype == dtype else None
        )
        buffers = threading.local()

        def compute(chunk: slice) -> T:
            if direct is not None:
                return work(chunk, direct[:, chunk])
            if not hasattr(buffers, "own"):
                buffers.own = np.empty((len(self), min(arrays.CHUNK_COLUMNS, self.size)), dtype)
            return work(chunk, self._columns(chunk, buffers.own))

        few = self.size <= CHUNKS_PER_TASK * arrays.CHUNK_COLUMNS
        if few or not any(isinstance(block, Borrowed) for block in self.blocks):
            yield from map(compute, column_chunks(self.size))
            return
        chunks = column_chunks(self.size)
        tasks = iter(lambda: [*islice(chunks, CHUNKS_PER_TASK)], [])
        with ThreadPoolExecutor(processors_here()) as threads:
            for results in threads.map(lambda several: [*map(compute, several)], tasks):
                yield from results

    def _columns(self, chunk: slice, buffer: NDArray[Any]) -> NDArray[Any]:
        """Return these columns of all rows in a buffer of shape (m, CHUNK_COLUMNS)."""
        columns = buffer[:, : chunk.stop - chunk.start]
        row = 0
        for block in self.blocks:
            part = columns[row : row + len(block)]
            if isinstance(block, Borrowed):
                block.read(chunk, part)
            else:
                part[...] = block[:, chunk]
            row += len(block)
        return columns


class Borrowed:
    """Updates of models that are not copied: w − w_k is computed when it is read.

    Of an update u in bfloat16, w_k is w − u.
    """

    def __init__(self, layout: Layout, models: Sequence[list[NDArray[Any]]] = ()) -> None:
        self._layout = layout
        self._models = [*models]
        self._pieces: dict[int, list[tuple[int, NDArray[Any], slice, slice]]] = {}

    def __len__(self) -> int:
        """Return m, the number of updates."""
        return len(self._models)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, d)."""
        return len(self), self._layout.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The updates' dtype."""
        return self._layout.dtype

    def __getitem__(self, row: int) -> NDArray[Any]:
        """Return a copy of one update, shape (d,)."""
        one = self.only(row)
        copied = np.empty((1, self._layout.size), self.dtype)
        for chunk in column_chunks(self._layout.size):
            one.read(chunk, copied[:, chunk])
        return np.asarray(copied[0])

    def read(self, chunk: slice, out: NDArray[Any]) -> None:
        """Compute the columns of one of `column_chunks` into `out`, shape (m, columns)."""
        pieces = self._pieces.setdefault(chunk.start, []) or self._cut(chunk)
        # Updates are rounded to the model's dtype, whatever is then computed from them.
        exact = out.dtype == self.dtype
        rounded = None if exact else np.empty(chunk.stop - chunk.start, self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for model, row in zip(self._models, out, strict=True):
                target = row if rounded is None else rounded
                for array, received, source, to in pieces:
                    values = model[array][source]
                    if values.dtype == BITS:
                        values = received - widen(values)
                    np.subtract(received, values, out=target[to], casting="same_kind")
                if rounded is not None:
                    row[:] = rounded

    def _cut(self, chunk: slice) -> list[tuple[int, NDArray[Any], slice, slice]]:
        """Return the arrays with a part in this chunk.

        For each: its number, the received values of the part, and the part's columns in the array
        and in the chunk.
        """
        pieces = self._pieces[chunk.start]
        starts = (0, *self._layout.ends)
        for number, to in split_at(self._layout.ends, chunk):
            start = chunk.start + to.start
            stop = chunk.start + to.stop
            source = slice(start - starts[number], stop - starts[number])
            pieces.append((number, self._layout.flat[start:stop], source, to))
        return pieces

    def add(self, arrays: Model) -> None:
        """Add a model without a copy."""
        self._models.append([arrays[name].ravel() for name in self._layout.trainable])

    def model(self, row: int) -> Model:
        """Return the trainable arrays of a model, flat, by name."""
        return dict(zip(self._layout.trainable, self._models[row], strict=True))

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all but these rows."""
        self._models = [self._models[k] for k in rows]

    def only(self, row: int) -> Borrowed:
        """Return one of these updates; its model is not copied."""
        return Borrowed(self._layout, [self._models[row]])


class DeviceRows(ABC):
    """Updates in the memory of a device, which computes products and sums there, in float64.

    A slice of rows shares their memory; anything else is read as a copy in this process.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        """Return m, the number of updates."""
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, key: Any) -> Any:
        """Return some of the rows, or a copy of one row or of a part of the matrix."""

    @abstractmethod
    def __setitem__(self, key: Any, values: NDArray[Any]) -> None:
        """Overwrite a row, or a part of the matrix."""

    @abstractmethod
    def subtract_from(self, flat: NDArray[Any]) -> None:
        """Replace each row by `flat` minus the row."""

    @abstractmethod
    def multiply(self, vectors: Vectors, ends: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Return the result of `squares_and_products`."""

    @abstractmethod
    def subtract_sum(
        self, coefficients: FloatArray, vectors: Vectors, into: NDArray[Any], ends: Sequence[int]
    ) -> float:
        """Do what the function `subtract_sum` does, with a row of coefficients for each end."""


# The flat vectors of a round: rows in this process, or on a device.
Matrix: TypeAlias = NDArray[Any] | DeviceRows


# Products of vectors ------------------------------------------------------------------------------


def gram_matrices(vectors: Vectors, ends: Sequence[int], *, exact: bool = False) -> FloatArray:
    """Return the inner products of the vectors' parts up to each end, shape (parts, m, m).

    One pass computes them. They are accumulated in float64, and equal vectors have equal rows.
    `exact` asks for products in float64 regardless of the size; see EXACT_NUMBERS.
    """
    _, products = squares_and_products(vectors, ends, exact=exact)
    return merge_equal_rows(vectors, products, exact=exact)


def squares_and_products(
    vectors: Vectors, ends: Sequence[int] = (), *, exact: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return each vector's squared norm, and the raw products of `gram_matrices`, in one pass."""
    if (device := vectors.on_device) is not None:
        return device.multiply(vectors, ends)

    def work(
        chunk: slice, block: NDArray[Any]
    ) -> tuple[NDArray[Any], list[tuple[int, NDArray[Any]]]]:
        products: list[tuple[int, NDArray[Any]]] = []
        with np.errstate(over="ignore", invalid="ignore"):  # each thread has a state of its own
            if ends:
                for number, columns in split_at(ends, chunk):
                    part = block[:, columns]
                    products.append((number, part @ part.T))
            return row_squares(block), products

    squares = np.zeros(len(vectors))
    products = np.zeros((len(ends), len(vectors), len(vectors)))
    if not vectors.size:
        return squares, products
    with np.errstate(over="ignore", invalid="ignore"):
        for chunk_squares, parts in vectors.map_chunks(exact or vectors.in_float64, work):
            squares += chunk_squares
            for number, part in parts:
                products[number] += part
    return squares, products


def merge_equal_rows(vectors: Vectors, grams: FloatArray, *, exact: bool) -> FloatArray:
    """Give vectors that differ only by rounding equal rows in `grams`, shape (parts, m, m).

    Vectors with a part that counts as zero get rows of zeros there. It changes `grams` in place.
    """
    for part, row in np.argwhere(np.diagonal(grams, axis1=1, axis2=2) < SMALLEST_SQUARE):
        grams[part, row] = grams[part, :, row] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        whole = grams.sum(axis=0)
        squares = np.diag(whole)
        share = ALIKE_SHARE[0] if exact or vectors.in_float64 else ALIKE_SHARE[1]
        distances = squares[:, None] + squares - 2.0 * whole
        alike = distances <= share * np.minimum(squares[:, None], squares)
    for row in np.flatnonzero(np.tril(alike, -1).any(axis=1)):
        twin = int(np.argmax(alike[row]))
        grams[:, row] = grams[:, twin]
        grams[:, :, row] = grams[:, :, twin]
    return grams


def row_squares(block: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of squares of each row."""
    if block.shape[1] < WIDE_COLUMNS:  # a call for each row would take longer than the work
        return np.asarray(np.vecdot(block, block))
    return np.array([np.dot(row, row) for row in block])


# Sums of vectors ----------------------------------------------------------------------------------


def subtract_sum(
    coefficients: FloatArray, vectors: Vectors, into: NDArray[Any], *, ends: Sequence[int] = ()
) -> float:
    """Subtract Σ_k c_k u_k from `into`, shape (d,), chunk by chunk.

    `coefficients` has a row for each of the `ends`, or one for all. Return the squared norm of the
    change of `into` if a device has computed it, else NaN: it costs this process a pass.
    """
    if not len(vectors) or into.size == 0 or not coefficients.any():
        return math.nan
    coefficients = np.atleast_2d(coefficients)
    parts = (into.size,) if len(coefficients) == 1 else ends

    def subtract(chunk: slice, block: NDArray[Any]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # each thread has a state of its own
            row = coefficients.astype(block.dtype)
            step = np.empty(block.shape[1], block.dtype)
            for number, columns in split_at(parts, chunk):
                step[columns] = row[number] @ block[:, columns]
            into[chunk] = into[chunk] - step

    with np.errstate(over="ignore", invalid="ignore"):
        if (device := vectors.on_device) is not None:
            return device.subtract_sum(coefficients, vectors, into, parts)
        for _ in vectors.map_chunks(vectors.in_float64, subtract):
            pass
    return math.nan


def weighted_sum(
    coefficients: FloatArray, vectors: Vectors, dtype: Any = np.float64, *, ends: Sequence[int] = ()
) -> NDArray[Any]:
    """Return Σ_k c_k u_k, shape (d,).

    In float64 it has the bits that `subtract_sum` subtracts.
    """
    values = np.zeros(vectors.size, dtype)
    subtract_sum(-coefficients, vectors, into=values, ends=ends)
    return values


def combine(coefficients: FloatArray, vectors: Vectors) -> Vectors:
    """Return Σ_k c_k u_k as one new vector; a one-hot c returns that vector, bit for bit.

    A borrowed vector, or one in a file, is then not copied: there may be no memory for a copy.
    """
    (used,) = coefficients.nonzero()
    if used.size == 1 and coefficients[used[0]] == 1.0:
        (row,) = vectors[int(used[0])].blocks
        if not isinstance(row, np.memmap | Borrowed):
            row = np.array(row[:, :])
        return Vectors((row,), vectors.needs_float64)
    return Vectors.of(
        weighted_sum(coefficients, vectors, vectors.blocks[0].dtype),
        needs_float64=vectors.needs_float64,
    )

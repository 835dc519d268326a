"""Flat updates u_k = w − w_k, their Gram matrix and their weighted sum, in one pass of chunks each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

Model = Mapping[str, NDArray[Any]]
"""A model's arrays by name: parameters, and buffers such as BatchNorm's statistics."""

CHUNK = 16384
"""Columns handled at once: m rows of them fit into the processor's cache."""

EXACT_NUMBERS = 2_000_000
"""Up to this many numbers (rows · columns) are multiplied in float64; beyond, in the model's own dtype within a chunk,
and summed over chunks in float64: 1.5e-7 in a cosine, at a fraction of the time."""

LARGEST = 1e150
"""Entries of float64 updates beyond this have no finite square, so the reply is refused."""

USUAL = (1e-20, 1e20)
"""Square sums of updates in this range need no closer look."""

SAFE_EXPONENT = 40
"""Rows whose largest entry lies outside 2^±40 are stored divided by a power of two, so that no product overflows."""


@dataclass(frozen=True)
class Vectors:
    """Flat vectors of one size, one below the other.

    Attributes
    ----------
    blocks
        Matrices in the model's dtype, each of shape (some, d), which share memory with whoever made them.
    scales
        What each row is multiplied by, shape (m,); powers of two, where entries would leave the range of products.
    """

    blocks: tuple[NDArray[Any], ...]
    scales: FloatArray

    @classmethod
    def of(cls, values: NDArray[Any], scale: float = 1.0) -> Vectors:
        """Return one vector of shape (d,)."""
        return cls((values[None, :],), np.array([scale]))

    def __len__(self) -> int:
        """Return m, the number of vectors."""
        return len(self.scales)

    def __add__(self, others: Vectors) -> Vectors:
        """Return these vectors with others below them."""
        return Vectors(self.blocks + others.blocks, np.concatenate([self.scales, others.scales]))

    def __getitem__(self, place: int) -> Vectors:
        """Return the vector at a place as the only one."""
        row = place
        for block in self.blocks:
            if row < len(block):
                return Vectors((block[row : row + 1],), self.scales[place : place + 1])
            row -= len(block)
        raise IndexError(place)

    @property
    def size(self) -> int:
        """d, the entries of each vector."""
        return self.blocks[0].shape[1] if self.blocks else 0

    @property
    def few(self) -> bool:
        """Whether there are so few numbers that products are made in float64."""
        return len(self) * self.size <= EXACT_NUMBERS

    def chunks(self, exact: bool) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield CHUNK columns of all rows at a time, shape (m, ≤ CHUNK), unscaled; in float64 if `exact`."""
        dtype = np.dtype(np.float64) if exact else self.blocks[0].dtype
        as_it_is = len(self.blocks) == 1 and self.blocks[0].dtype == dtype
        buffer = np.empty((len(self), min(CHUNK, self.size)), dtype)
        for start in range(0, self.size, CHUNK):
            place = slice(start, min(start + CHUNK, self.size))
            if as_it_is:
                yield place, self.blocks[0][:, place]
                continue
            part = buffer[:, : place.stop - start]
            np.concatenate([block[:, place] for block in self.blocks], out=part, casting="same_kind")
            yield place, part


class Layout:
    """Which arrays of a model are averaged as updates, which as buffers, and where each lies in the flat vector.

    Parameters
    ----------
    arrays
        The global model w by array name.
    buffers
        Names of float arrays (BatchNorm statistics) that are averaged but are no part of the update.
    shared
        Names of arrays that are the same parameter as another one, each with the name of that one, which stands for
        them: the update has it once, and they get its values.

    Raises
    ------
    ValueError
        When a buffer is no float array of the model, shared arrays are no equal parameters, or an array is neither
        float, integer nor bool, or not finite.
    """

    def __init__(self, arrays: Model, buffers: Sequence[str] = (), shared: Mapping[str, str] | None = None) -> None:
        self.shared = dict(shared or {})
        for name in buffers:
            if name not in arrays or arrays[name].dtype.kind != "f":
                raise ValueError(f"buffers names {name!r}, which is no float array of the model ({', '.join(arrays)})")
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise ValueError(f"array {name!r} has dtype {array.dtype}; only float, integer and bool are supported")
            if not np.isfinite(array).all():
                raise ValueError(f"array {name!r} of the global model is not finite")
        self.arrays = arrays
        self.buffers = tuple(name for name in arrays if name in buffers)
        self.integers = tuple(name for name, array in arrays.items() if array.dtype.kind != "f")
        self.trainable = tuple(
            n for n, a in arrays.items() if a.dtype.kind == "f" and n not in buffers and n not in self.shared
        )
        for name, first in self.shared.items():
            self._check_shared(name, first)
        floats = [arrays[name].dtype for name in self.trainable]
        self.dtype = np.result_type(np.float32, *floats)
        self.size = sum(arrays[name].size for name in self.trainable)

    def _check_shared(self, name: str, first: str) -> None:
        if name not in self.arrays or name in self.buffers or first not in self.trainable:
            wrong = first if first not in self.trainable else name
            raise ValueError(
                f"shared = {{{name!r}: {first!r}}}: {wrong!r} is no parameter of the model that an update has"
            )
        one, other = self.arrays[name], self.arrays[first]
        if one.dtype != other.dtype or not np.array_equal(one, other):
            raise ValueError(
                f"shared = {{{name!r}: {first!r}}}: the two arrays of the model differ, so they are not one parameter"
            )

    @property
    def slices(self) -> Iterator[tuple[str, slice]]:
        """Each trainable array's name and its place in the flat vector."""
        start = 0
        for name in self.trainable:
            stop = start + self.arrays[name].size
            yield name, slice(start, stop)
            start = stop

    @cached_property
    def flat(self) -> NDArray[Any]:
        """The trainable part of w as one vector of `size` entries."""
        parts = [self.arrays[name].ravel() for name in self.trainable]
        return np.concatenate(parts).astype(self.dtype, copy=False) if parts else np.empty(0, self.dtype)

    def mismatch(self, arrays: Model) -> str | None:
        """Return how `arrays` differs from the model in names, shapes or kinds of dtype; None where it does not."""
        for name, array in self.arrays.items():
            if name not in arrays:
                return f"array {name!r} is missing"
            if arrays[name].shape != array.shape:
                return f"array {name!r} has shape {arrays[name].shape}, the model has {array.shape}"
            if arrays[name].dtype.kind != array.dtype.kind:
                return f"array {name!r} has dtype {arrays[name].dtype}, the model has {array.dtype}"
        added = [name for name in arrays if name not in self.arrays]
        return f"array {added[0]!r} is not in the model" if added else None


class Updates:
    """The usable replies of one round as flat updates, added one by one in the order of client names."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.layout = layout
        self._matrix = np.empty((capacity, layout.size), layout.dtype)
        self._scales: list[float] = []
        self._others: list[Model] = []

    def add(self, arrays: Model) -> None:
        """Store u = w − `arrays` as the next row, and copies of its buffers: `arrays` may be overwritten afterwards.

        Raises
        ------
        ValueError
            When an entry is not finite; nothing is stored then.
        """
        row = self._matrix[len(self._scales)]
        with np.errstate(over="ignore", invalid="ignore"):
            for name, place in self.layout.slices:
                np.subtract(self.layout.flat[place], arrays[name].ravel(), out=row[place], casting="same_kind")
        # A square sum in the usual range tells in one pass that all is finite and not small; else look closer.
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.dot(row, row))
        usual = USUAL[0] < square < USUAL[1]
        largest = 1.0 if usual else float(max(row.max(), -row.min())) if row.size else 0.0
        suspects = self.layout.buffers if np.isfinite(largest) else (*self.layout.trainable, *self.layout.buffers)
        for name in suspects:
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"array {name!r} is not finite")
        if not np.isfinite(largest):
            raise ValueError(f"its update is beyond the range of {row.dtype}")
        if largest > LARGEST:
            raise ValueError(f"its update has an entry of {largest:.0e}, beyond {LARGEST:.0e}: inner products overflow")
        exponent = int(np.frexp(largest)[1])
        if abs(exponent) > SAFE_EXPONENT:
            np.ldexp(row, -exponent, out=row)
        self._scales.append(2.0**exponent if abs(exponent) > SAFE_EXPONENT else 1.0)
        self._others.append({name: arrays[name].copy() for name in (*self.layout.buffers, *self.layout.integers)})

    def remove(self, place: int) -> None:
        """Leave out the row at `place`; those after it move up, one at a time, so that no copy of all is made."""
        del self._scales[place], self._others[place]
        for k in range(place, len(self._scales)):
            self._matrix[k] = self._matrix[k + 1]

    @property
    def vectors(self) -> Vectors:
        """The updates added so far; they share the memory of this."""
        count = len(self._scales)
        return Vectors((self._matrix[:count],), np.array(self._scales, np.float64))

    def model_after(
        self, coefficients: FloatArray, vectors: Vectors, prior: FloatArray, counts: FloatArray
    ) -> dict[str, NDArray[Any]]:
        """Return w − Σ_k c_k `vectors`_k in the model's dtypes.

        Buffers are averaged by `prior`; integer arrays are those of the client with the most examples (the first of
        several). Shared arrays are those of the parameter that stands for them.

        Raises
        ------
        ValueError
            When the result is not finite.
        """
        flat = self.layout.flat.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            weighted_sum(coefficients, vectors, into=flat)
        places = dict(self.layout.slices)
        places |= {name: places[first] for name, first in self.layout.shared.items()}
        largest = int(np.argmax(counts))
        model = {}
        for name, array in self.layout.arrays.items():
            if name in places:
                after = flat[places[name]].reshape(array.shape)
            elif name in self.layout.buffers:
                after = sum(p * other[name].astype(np.float64) for p, other in zip(prior, self._others, strict=True))
            else:
                after = self._others[largest][name]
            with np.errstate(over="ignore"):
                model[name] = np.asarray(after).astype(array.dtype, copy=False)
            if not np.isfinite(model[name]).all():
                raise ValueError(f"array {name!r} after the step is beyond the range of {array.dtype}")
        return model


def gram_matrix(vectors: Vectors, *, exact: bool = False) -> FloatArray:
    """Return the inner products of the vectors, shape (m, m), accumulated in float64.

    `exact` asks for float64 products however many numbers there are; see EXACT_NUMBERS.
    """
    gram = np.zeros((len(vectors), len(vectors)))
    if len(vectors) == 0 or vectors.size == 0:
        return gram
    for _, block in vectors.chunks(exact or vectors.few):
        gram += block @ block.T
    gram *= np.outer(vectors.scales, vectors.scales)
    return gram


def squared_norms(vectors: Vectors) -> FloatArray:
    """Return the squared norm of each vector, shape (m,), accumulated in float64."""
    norms = np.zeros(len(vectors))
    if len(vectors) == 0 or vectors.size == 0:
        return norms
    for _, block in vectors.chunks(vectors.few):
        norms += [np.dot(part, part) for part in block]
    norms *= vectors.scales**2
    return norms


def weighted_sum(coefficients: FloatArray, vectors: Vectors, into: NDArray[Any]) -> None:
    """Subtract Σ_k c_k u_k from `into` (shape (d,)), chunk by chunk."""
    if not len(vectors) or into.size == 0 or not coefficients.any():
        return
    scaled = coefficients * vectors.scales
    for place, block in vectors.chunks(vectors.few):
        into[place] = into[place] - scaled.astype(block.dtype) @ block


def combine(coefficients: FloatArray, vectors: Vectors) -> Vectors:
    """Return Σ_k c_k u_k as one new vector, or the very vector where one coefficient is 1 and the others 0."""
    (used,) = np.nonzero(coefficients)
    if len(used) == 1 and coefficients[used[0]] == 1.0:
        return vectors[int(used[0])]
    values = np.zeros(vectors.size, vectors.blocks[0].dtype)
    weighted_sum(-coefficients, vectors, into=values)
    return Vectors.of(values)

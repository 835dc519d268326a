"""Flat updates u_k = w − w_k, their Gram matrix and their weighted sum, in one pass of chunks each."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairbloom.system.processors import processors_here

FloatArray = NDArray[np.float64]
T = TypeVar("T")

Model = Mapping[str, NDArray[Any]]
"""A model's arrays by name: parameters, and buffers such as BatchNorm's statistics."""

CHUNK_COLUMNS = 16384
"""Columns handled at once: m rows of them fit into the processor's cache."""

CHUNKS_PER_TASK = 16
"""Chunks that a thread works on before it asks for more: to ask takes as long as a chunk of a few
updates."""

WIDE_COLUMNS = 4096
"""From this many columns on, each row is multiplied by itself in a call of its own."""

CACHED_NUMBERS = 262144
"""How many numbers of whole rows are checked and subtracted before the next ones are read."""

EXACT_NUMBERS = 2_000_000
"""Up to this many numbers (rows · columns) are multiplied in float64; beyond, in the model's own
dtype within a chunk, and summed over chunks in float64: 1.5e-7 in a cosine, at a fraction of the
time."""

ALIKE_SHARE = 1e-13, 1e-6
"""Squared distance of two vectors, relative to the smaller of their squared lengths, up to which
products in float64, and in the model's own dtype, tell them apart by rounding alone."""

MAX_ENTRY = 1e150
"""Entries of float64 updates beyond this have no finite square, so the reply is refused."""

SMALLEST_SQUARE = 1e-300
"""Vectors, and parts of them, whose squared norm is less count as zero: precision is lost below the
normal numbers."""

SAFE_SQUARES = (1e-20, 1e20)
"""Square sums of updates in this range need no closer look."""

EXACT_SQUARES = (1e-200, 1e300)
"""A float64 sum of squares in this range has lost nothing to overflow or underflow."""

DTYPES = "float, integer and bool"
"""The kinds of arrays of a model."""

STATISTICS = ("running_mean", "running_var")
"""PyTorch's names of the statistics that BatchNorm keeps; those of a model's arrays end so."""

UNFROZEN = "let its client leave it untrained (requires_grad = False), or out of the reply"
"""The remedy where a client replies other values of an array that nobody trains."""

SAFE_EXPONENT = 40
"""Where the largest entry of a row lies outside 2^±40, the round's numbers are multiplied in
float64: no product then overflows."""


class NotFiniteError(ValueError):
    """A reply with an array, or an update, that is not finite."""


@dataclass(frozen=True)
class Vectors:
    """Flat vectors of one size, one below the other.

    `blocks` are matrices in the model's dtype, each of shape (some, d), or models whose updates are
    computed where they are read. `extreme` says that the largest entry of a row lies outside
    2^±SAFE_EXPONENT.
    """

    blocks: tuple[NDArray[Any] | Borrowed, ...]
    extreme: bool = False

    @classmethod
    def of(cls, values: NDArray[Any], *, extreme: bool = False) -> Vectors:
        """Return one vector of shape (d,)."""
        return cls((values[None, :],), extreme)

    def __len__(self) -> int:
        """Return m, the number of vectors."""
        return sum(map(len, self.blocks))

    @classmethod
    def below(cls, parts: Sequence[Vectors]) -> Vectors:
        """Return the vectors of several such objects, one below the other."""
        if len(parts) == 1:
            return parts[0]
        blocks = tuple(block for part in parts for block in part.blocks)
        return cls(blocks, any(part.extreme for part in parts))

    def __getitem__(self, place: int) -> Vectors:
        """Return the vector at a place as the only one."""
        row = place
        for block in self.blocks:
            if row < len(block):
                return Vectors(
                    (block.only(row) if isinstance(block, Borrowed) else block[row : row + 1],),
                    self.extreme,
                )
            row -= len(block)
        raise IndexError(place)

    @property
    def size(self) -> int:
        """d, the entries of each vector."""
        return self.blocks[0].shape[1] if self.blocks else 0

    @property
    def in_float64(self) -> bool:
        """Whether products are made in float64, since there are so few numbers, or extreme ones."""
        return self.extreme or len(self) * self.size <= EXACT_NUMBERS

    def each_chunk(self, exact: bool, work: Callable[[slice, NDArray[Any]], T]) -> Iterator[T]:
        """Yield what `work` makes of CHUNK_COLUMNS of all rows at a time, shape (m, ≤ CHUNK_COLUMNS), in their order.

        They are in float64 if `exact`. Threads, one for each processor core, compute borrowed
        updates, where there are many.
        """
        dtype = np.dtype(np.float64) if exact else self.blocks[0].dtype
        only, *more = self.blocks
        as_they_lie = None if more or isinstance(only, Borrowed) or only.dtype != dtype else only
        buffers = threading.local()

        def compute(place: slice) -> T:
            if as_they_lie is not None:
                return work(place, as_they_lie[:, place])
            if not hasattr(buffers, "own"):
                buffers.own = np.empty((len(self), min(CHUNK_COLUMNS, self.size)), dtype)
            return work(place, self._columns(place, buffers.own))

        few = self.size <= CHUNKS_PER_TASK * CHUNK_COLUMNS
        if few or not any(isinstance(block, Borrowed) for block in self.blocks):
            yield from map(compute, places(self.size))
            return
        chunks = places(self.size)
        tasks = iter(lambda: [*islice(chunks, CHUNKS_PER_TASK)], [])
        with ThreadPoolExecutor(processors_here()) as threads:
            for results in threads.map(lambda several: [*map(compute, several)], tasks):
                yield from results

    def _columns(self, place: slice, buffer: NDArray[Any]) -> NDArray[Any]:
        """Return these columns of all rows in a buffer of the shape (m, CHUNK_COLUMNS)."""
        columns = buffer[:, : place.stop - place.start]
        row = 0
        for block in self.blocks:
            part = columns[row : row + len(block)]
            if isinstance(block, Borrowed):
                block.read(place, part)
            else:
                part[...] = block[:, place]
            row += len(block)
        return columns


def places(size: int) -> Iterator[slice]:
    """Yield all columns, CHUNK_COLUMNS at a time."""
    for start in range(0, size, CHUNK_COLUMNS):
        yield slice(start, min(start + CHUNK_COLUMNS, size))


def split_at(ends: Sequence[int], place: slice) -> Iterator[tuple[int, slice]]:
    """Yield the parts of these columns that lie between the `ends`: each part's number, and its columns of `place`.

    A chunk is split and not shortened at an end: a model of many small arrays has as few chunks as
    one of few large arrays.
    """
    number = bisect_right(ends, place.start)
    start = place.start
    while start < place.stop:
        stop = min(ends[number], place.stop)
        if start < stop:
            yield number, slice(start - place.start, stop - place.start)
        number = number + 1
        start = stop


class Layout:
    """Which arrays of a model are averaged as updates, which as buffers, and where each lies in the flat vector.

    Parameters
    ----------
    buffers
        Float arrays (BatchNorm statistics) that are averaged and are no part of the update; None:
        found by their names. One that is not finite, as a mask, is frozen.
    shared
        Arrays that are the same parameter as another one, by name: the update has that one, and
        they get its values.
    frozen
        Arrays that nobody trains: they stay as they are, and are no part of the update.
    """

    def __init__(
        self,
        arrays: Model,
        buffers: Sequence[str] | None = None,
        shared: Mapping[str, str] | None = None,
        frozen: Collection[str] = (),
    ) -> None:
        shared = shared or {}
        named = frozenset(frozen)
        self.frozen = named | {name for name, first in shared.items() if first in named}
        self.shared = {name: first for name, first in shared.items() if name not in self.frozen}
        if buffers is None:
            others = [
                name for name in arrays if name not in self.shared and name not in self.frozen
            ]
            buffers = [
                name
                for name in others
                if name.endswith(STATISTICS) and arrays[name].dtype.kind == "f"
            ]
        for name in buffers:
            if name not in arrays or arrays[name].dtype.kind != "f":
                raise ValueError(
                    f"buffers names {name!r}, which is no float array of the model"
                    f" ({', '.join(arrays)})"
                )
        for name in self.frozen:
            if name not in arrays or name in buffers:
                raise ValueError(
                    f"frozen names {name!r}, which is no parameter of the model"
                    f" ({', '.join(arrays)})"
                )
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise ValueError(
                    f"array {name!r} has dtype {array.dtype}; only {DTYPES} are supported"
                )
        self.arrays = arrays
        # as a mask with −inf
        self.frozen |= {name for name in buffers if not np.isfinite(arrays[name]).all()}
        self.buffers = tuple(name for name in arrays if name in buffers and name not in self.frozen)
        changing = {name: array for name, array in arrays.items() if name not in self.frozen}
        self.integers = tuple(name for name, array in changing.items() if array.dtype.kind != "f")
        self.trainable = tuple(
            n
            for n, a in changing.items()
            if a.dtype.kind == "f" and n not in buffers and n not in self.shared
        )
        for name in self.trainable:
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"array {name!r} of the global model is not finite")
        for name, first in self.shared.items():
            if first not in self.trainable or name not in arrays or name in self.buffers:
                wrong = first if first not in self.trainable else name
                raise ValueError(
                    f"shared = {{{name!r}: {first!r}}}: {wrong!r} is no parameter of the model to"
                    " train"
                )
            if arrays[name].dtype != arrays[first].dtype or not np.array_equal(
                arrays[name], arrays[first]
            ):
                raise ValueError(
                    f"shared = {{{name!r}: {first!r}}}: the two arrays of the model differ"
                )
        floats = [arrays[name].dtype for name in self.trainable]
        self.dtype = np.result_type(np.float32, *floats)
        self.size = sum(arrays[name].size for name in self.trainable)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where each trainable array ends in the flat vector."""
        return tuple(accumulate(self.arrays[name].size for name in self.trainable))

    @property
    def slices(self) -> Iterator[tuple[str, slice]]:
        """Each trainable array's name and its place in the flat vector."""
        for name, start, stop in zip(self.trainable, (0, *self.ends), self.ends, strict=False):
            yield name, slice(start, stop)

    @cached_property
    def flat(self) -> NDArray[Any]:
        """The trainable part of w as one vector of `size` entries."""
        parts = [self.arrays[name].ravel() for name in self.trainable]
        return (
            np.concatenate(parts).astype(self.dtype, copy=False)
            if parts
            else np.empty(0, self.dtype)
        )

    @cached_property
    def trainable_part(self) -> Layout:
        """The layout of a model of the trainable arrays alone, in which they lie as they do here."""
        return Layout({name: self.arrays[name] for name in self.trainable}, buffers=())

    @cached_property
    def length(self) -> float:
        """‖w‖, over the trainable part."""
        return self.distance(None, self.trainable)

    def distance(self, other: Model | None, names: Sequence[str]) -> float:
        """Return how far these arrays, as one vector, are from those of another model, or from zero."""
        models = [self.arrays] if other is None else [self.arrays, other]
        return math.hypot(*(length(*(model[name].ravel() for model in models)) for name in names))

    def arrays_of(self, flat: NDArray[Any]) -> Model:
        """Return a flat vector as the trainable arrays, in their shapes and dtypes."""
        shaped = {name: (flat[place], self.arrays[name]) for name, place in self.slices}
        return {
            name: part.reshape(like.shape).astype(like.dtype)
            for name, (part, like) in shaped.items()
        }

    def mismatch(self, arrays: Model) -> str | None:
        """Return how `arrays` differs from the model in names, shapes or kinds of dtype.

        None where it does not.

        Frozen arrays may be left out; one that is there has the model's values.
        """
        for name, array in self.arrays.items():
            if name in self.frozen:
                floats = name in arrays and arrays[name].dtype.kind == array.dtype.kind == "f"
                if name in arrays and not np.array_equal(arrays[name], array, equal_nan=floats):
                    return (
                        f"array {name!r} is frozen, and the reply holds other values of it:"
                        f" {UNFROZEN}"
                    )
                continue
            if name not in arrays:
                return f"array {name!r} is missing"
            if arrays[name].shape != array.shape:
                return f"array {name!r} has shape {arrays[name].shape}, the model has {array.shape}"
            if arrays[name].dtype.kind != array.dtype.kind:
                return f"array {name!r} has dtype {arrays[name].dtype}, the model has {array.dtype}"
        added = [name for name in arrays if name not in self.arrays]
        return f"array {added[0]!r} is not in the model" if added else None


class Borrowed:
    """Updates of models that stay where they are: w − w_k is computed where it is read, and none is stored."""

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
        for place in places(self._layout.size):
            one.read(place, copied[:, place])
        return np.asarray(copied[0])

    def read(self, place: slice, out: NDArray[Any]) -> None:
        """Compute the columns `place`, one of those CHUNK_COLUMNS wide, into `out`, shape (m, columns)."""
        pieces = self._pieces.setdefault(place.start, []) or self._cut(place)
        rounded = (
            None if out.dtype == self.dtype else np.empty(place.stop - place.start, self.dtype)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            for model, row in zip(self._models, out, strict=True):
                target = row if rounded is None else rounded
                for array, received, where, to in pieces:
                    np.subtract(received, model[array][where], out=target[to], casting="same_kind")
                # updates are of the model's dtype, whatever is made of them
                if rounded is not None:
                    row[:] = rounded

    def _cut(self, place: slice) -> list[tuple[int, NDArray[Any], slice, slice]]:
        """Return which arrays have a part of these columns, the received values, where they lie, and where to."""
        pieces = self._pieces[place.start]
        starts = (0, *self._layout.ends)
        for number, to in split_at(self._layout.ends, place):
            start = place.start + to.start
            stop = place.start + to.stop
            there = slice(start - starts[number], stop - starts[number])
            pieces.append((number, self._layout.flat[start:stop], there, to))
        return pieces

    def add(self, arrays: Model) -> None:
        """Take in a model as it is."""
        self._models.append([arrays[name].ravel() for name in self._layout.trainable])

    def model(self, row: int) -> Model:
        """Return the trainable arrays of a model, flat, by name."""
        return dict(zip(self._layout.trainable, self._models[row], strict=True))

    def keep(self, rows: Sequence[int]) -> None:
        """Leave out all but these rows."""
        self._models = [self._models[k] for k in rows]

    def only(self, row: int) -> Borrowed:
        """Return one of these updates, whose model stays where it is."""
        return Borrowed(self._layout, [self._models[row]])


class Updates:
    """The replies of one round as flat updates, in the order of client names.

    Either models are given to `add`, which keeps them where they are: their arrays must not change.
    Or flat models lie in the rows of `matrix`, of shape (at least m, d), and `add_rows` makes
    updates of them. `screen` follows.

    Parameters
    ----------
    of
        What errors call the models, such as "snapshot"; "": the reply's.
    """

    def __init__(self, layout: Layout, matrix: NDArray[Any] | None = None, of: str = "") -> None:
        self.layout = layout
        self._of = f" of the {of}" if of else ""
        self._rows: NDArray[Any] | Borrowed = Borrowed(layout) if matrix is None else matrix
        self._carried = (*layout.buffers, *layout.integers)
        self._others: list[Model] = []
        self._extreme: list[bool] = []
        self._unusable: dict[int, ValueError] = {}  # by place, found before `screen`
        self._squares: FloatArray | None = None
        self._products: FloatArray | None = None

    @property
    def matrix(self) -> NDArray[Any]:
        """The rows that were given: those in use are updates, those after them are free."""
        if isinstance(self._rows, Borrowed):
            raise TypeError("these updates are borrowed from models, and lie in no matrix")
        return self._rows

    def __len__(self) -> int:
        """Return m, the number of updates."""
        return len(self._others)

    def add(self, arrays: Model) -> None:
        """Take in u = w − `arrays`, with copies of its buffers."""
        if not isinstance(self._rows, Borrowed):
            raise TypeError(
                "these updates lie in a matrix: write the model into its next row, and call"
                " add_rows"
            )
        self._rows.add(arrays)
        self._carry([arrays])

    def add_rows(self, others: Sequence[Model]) -> None:
        """Turn the rows of `matrix` after those in use, which hold flat models, into updates.

        `others` has the buffers and integer arrays of each new row's model.
        """
        first = len(self)
        matrix = self.matrix
        self._carry(others)
        step = max(1, CACHED_NUMBERS // max(1, self.layout.size))
        for start in range(first, len(self), step):
            rows = matrix[start : min(start + step, len(self))]
            with np.errstate(over="ignore", invalid="ignore"):
                suspects = np.flatnonzero(~np.isfinite(np.vecdot(rows, rows)))
                for k in map(int, suspects):
                    self._note(
                        start + k, {name: rows[k][place] for name, place in self.layout.slices}
                    )
                np.subtract(self.layout.flat, rows, out=rows)

    def _carry(self, others: Sequence[Model]) -> None:
        first = len(self)
        carried = self._carried
        self._others += (
            [{name: other[name].copy() for name in carried} for other in others]
            if carried
            else others
        )
        self._extreme += [False] * len(others)
        self._forget()
        for place in range(first, len(self)) if self.layout.buffers else ():
            self._note(place, {name: self._others[place][name] for name in self.layout.buffers})

    def _note(self, place: int, arrays: Model) -> None:
        """Note the reply as unusable where an entry is not finite."""
        if wrong := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
            self._unusable[place] = NotFiniteError(f"array {wrong[0]!r}{self._of} is not finite")

    def screen(
        self, *, gram: bool, by_array: bool = False, below: Sequence[Vectors] = ()
    ) -> dict[int, ValueError]:
        """Return why updates cannot be used, by their places.

        The pass over all that finds it also measures them.

        With `gram`, that pass computes the Gram matrix as well, whole or `by_array`, with the rows
        of `below` after the updates.
        """
        if not (m := len(self)):
            return {}
        rows = self.vectors
        ends = tuple[int, ...]()
        # whose products would be others with more rows
        if gram and not (below and rows.in_float64):
            rows = Vectors.below([rows, *below])
            ends = self.layout.ends if by_array else (self.layout.size,)
        squares, products = squares_and_products(rows, ends)
        squares = squares[:m]
        usual = (squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])  # NaN is unusual, too
        for k in map(int, np.flatnonzero(~usual)):
            if isinstance(self._rows, Borrowed) and not np.isfinite(squares[k]):
                self._note(k, self._rows.model(k))
            if k not in self._unusable:
                try:
                    self._extreme[k] = is_extreme(self._rows[k])
                except ValueError as reason:
                    self._unusable[k] = reason
        if not any(self._extreme):
            self._squares = squares
            self._products = products if ends else None
        return self._unusable

    def _forget(self) -> None:
        self._squares = self._products = None

    def remove(self, *places: int) -> None:
        """Leave out the rows at `places`.

        Those after them move up, one at a time, so that no copy of all is made.
        """
        left = [k for k in range(len(self)) if k not in places]
        if isinstance(self._rows, Borrowed):
            self._rows.keep(left)
        else:
            for to, k in enumerate(left):
                if to != k:
                    self._rows[to] = self._rows[k]
        self._unusable = {to: self._unusable[k] for to, k in enumerate(left) if k in self._unusable}
        self._extreme = [self._extreme[k] for k in left]
        self._others = [self._others[k] for k in left]
        self._forget()

    def replace(self, place: int, values: FloatArray) -> None:
        """Put another update, shape (d,), in the place of one that lies in the matrix."""
        self.matrix[place] = values
        self._extreme[place] = is_extreme(self.matrix[place])
        self._forget()

    @property
    def lengths(self) -> FloatArray:
        """‖u_k‖, shape (m,)."""
        return np.asarray(np.sqrt(self._measured()))

    @property
    def squared_norms(self) -> FloatArray:
        """‖u_k‖², shape (m,); 0 where it is next to nothing."""
        return np.where(self._measured() < SMALLEST_SQUARE, 0.0, self._measured())

    def _measured(self) -> FloatArray:
        """Return the squared norms, remembered until a row comes or goes, since they cost a pass over all."""
        if self._squares is None:
            self._squares, _ = squares_and_products(self.vectors)
        return self._squares

    def gram(self, vectors: Vectors, *, exact: bool) -> FloatArray:
        """Return what `gram_matrix` does of the updates and the rows below them.

        `screen` may know it.
        """
        return np.asarray(self._gram_matrices(vectors, (self.layout.size,), exact)[0])

    def grams(self, vectors: Vectors, *, exact: bool) -> FloatArray:
        """Return the same for each trainable array, shape (L, rows, rows); `screen` may know it."""
        return self._gram_matrices(vectors, self.layout.ends, exact)

    def _gram_matrices(self, vectors: Vectors, ends: Sequence[int], exact: bool) -> FloatArray:
        known = self._products
        if known is None or known.shape != (len(ends), len(vectors), len(vectors)) or exact:
            return gram_matrices(vectors, ends, exact=exact)
        return _finished(vectors, known.copy(), exact=exact)

    def others(self, place: int) -> Model:
        """Return the buffers and integer arrays of the model in a place."""
        return self._others[place]

    def buffer_changes(self) -> FloatArray:
        """Return how far each reply's buffers are from the global model's, as one vector, shape (m,)."""
        layout = self.layout
        return np.array([layout.distance(other, layout.buffers) for other in self._others])

    @property
    def vectors(self) -> Vectors:
        """The updates added so far; they share the memory of this."""
        rows = self._rows if isinstance(self._rows, Borrowed) else self._rows[: len(self)]
        return Vectors((rows,), any(self._extreme))

    def model_after(
        self, coefficients: FloatArray, vectors: Vectors, prior: FloatArray, counts: FloatArray
    ) -> dict[str, NDArray[Any]]:
        """Return w − Σ_k c_k `vectors`_k in the model's dtypes.

        C may have a row for each trainable array.
        """
        flat = self.layout.flat.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            weighted_sum(coefficients, vectors, into=flat, ends=self.layout.ends)
        return self.model_with(flat, prior, counts)

    def model_with(
        self, flat: NDArray[Any], prior: FloatArray, counts: FloatArray
    ) -> dict[str, NDArray[Any]]:
        """Return the model whose trainable part is `flat`; raise ValueError where it is not finite.

        Buffers are averaged by `prior`; integer arrays are those of the client with the most
        examples (the first of several). Shared arrays are those of the parameter that stands for
        them, and frozen ones the received.
        """
        places = dict(self.layout.slices)
        places |= {name: places[first] for name, first in self.layout.shared.items()}
        largest = int(np.argmax(counts))
        model = {}
        for name, array in self.layout.arrays.items():
            if name in self.layout.frozen:
                model[name] = array
                continue
            if name in places:
                after = flat[places[name]].reshape(array.shape)
            elif name in self.layout.buffers:
                replied = (other[name].astype(np.float64) for other in self._others)
                after = sum(p * buffer for p, buffer in zip(prior, replied, strict=True))
            else:
                after = self._others[largest][name]
            with np.errstate(over="ignore"):
                model[name] = np.asarray(after).astype(array.dtype, copy=False)
            if not np.isfinite(model[name]).all():
                raise ValueError(
                    f"array {name!r} after the step is beyond the range of {array.dtype}"
                )
        return model


def is_extreme(row: NDArray[Any]) -> bool:
    """Return whether the largest entry lies outside 2^±SAFE_EXPONENT.

    Raise ValueError where a square is not finite.
    """
    largest = float(max(row.max(), -row.min())) if row.size else 0.0
    if not np.isfinite(largest):
        raise NotFiniteError(f"its update is beyond the range of {row.dtype}")
    if largest > MAX_ENTRY:
        raise ValueError(
            f"its update has an entry of {largest:.0e}, beyond {MAX_ENTRY:.0e}: inner products"
            " overflow"
        )
    return abs(int(np.frexp(largest)[1])) > SAFE_EXPONENT


def gram_matrices(vectors: Vectors, ends: Sequence[int], *, exact: bool = False) -> FloatArray:
    """Return the inner products of the vectors' parts up to each of the `ends`, shape (parts, m, m), in one pass.

    They are accumulated in float64, and equal vectors have equal rows. `exact` asks for float64
    products however many numbers there are; see EXACT_NUMBERS.
    """
    _, products = squares_and_products(vectors, ends, exact=exact)
    return _finished(vectors, products, exact=exact)


def squares_and_products(
    vectors: Vectors, ends: Sequence[int] = (), *, exact: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return each vector's squared norm, and the products of `gram_matrices` as they are, in one pass."""

    def work(
        place: slice, block: NDArray[Any]
    ) -> tuple[FloatArray, list[tuple[int, NDArray[Any]]]]:
        with np.errstate(over="ignore", invalid="ignore"):  # each thread has a state of its own
            parts = (
                [(number, block[:, columns]) for number, columns in split_at(ends, place)]
                if ends
                else []
            )
            return row_squares(block), [(number, part @ part.T) for number, part in parts]

    squares = np.zeros(len(vectors))
    products = np.zeros((len(ends), len(vectors), len(vectors)))
    with np.errstate(over="ignore", invalid="ignore"):
        for some, parts in (
            vectors.each_chunk(exact or vectors.in_float64, work) if vectors.size else ()
        ):
            squares += some
            for number, part in parts:
                products[number] += part
    return squares, products


def _finished(vectors: Vectors, grams: FloatArray, *, exact: bool) -> FloatArray:
    """Give vectors that rounding alone tells apart equal rows in the products of their parts, shape (parts, m, m).

    Vectors whose part is next to nothing get rows of zeros. All is done in place.
    """
    for part, row in np.argwhere(np.diagonal(grams, axis1=1, axis2=2) < SMALLEST_SQUARE):
        grams[part, row] = grams[part, :, row] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        whole = grams.sum(axis=0)
        norms = np.diag(whole)
        share = ALIKE_SHARE[0] if exact or vectors.in_float64 else ALIKE_SHARE[1]
        alike = norms[:, None] + norms - 2.0 * whole <= share * np.minimum(norms[:, None], norms)
    for row in np.flatnonzero(np.tril(alike, -1).any(axis=1)):
        twin = int(np.argmax(alike[row]))
        grams[:, row] = grams[:, twin]
        grams[:, :, row] = grams[:, :, twin]
    return grams


def row_squares(block: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of squares of each row."""
    few = block.shape[1] < WIDE_COLUMNS  # a call for each row then takes longer than the work
    return np.vecdot(block, block) if few else np.array([np.dot(part, part) for part in block])


def length(values: NDArray[Any], less: NDArray[Any] | None = None) -> float:
    """Return ‖values‖ of a flat vector, or ‖values − less‖ of two, accumulated in float64 and without overflow."""
    with np.errstate(over="ignore"):
        square = sum(float(np.dot(part, part)) for part in _differences(values, less))
    if EXACT_SQUARES[0] < square < EXACT_SQUARES[1]:
        return math.sqrt(square)
    largest = max((float(np.abs(part).max()) for part in _differences(values, less)), default=0.0)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = (part / largest for part in _differences(values, less))
    return largest * math.sqrt(sum(float(np.dot(part, part)) for part in scaled))


def _differences(values: NDArray[Any], less: NDArray[Any] | None) -> Iterator[FloatArray]:
    """Yield `values` − `less` in float64, CHUNK_COLUMNS entries at a time."""
    with np.errstate(over="ignore"):
        for place in places(values.size):
            part = values[place].astype(np.float64)
            if less is not None:
                part -= less[place]
            yield part


def weighted_sum(
    coefficients: FloatArray, vectors: Vectors, into: NDArray[Any], *, ends: Sequence[int] = ()
) -> None:
    """Subtract Σ_k c_k u_k from `into` (shape (d,)), chunk by chunk.

    C has a row for each of the `ends`, or one for all.
    """
    if not len(vectors) or into.size == 0 or not coefficients.any():
        return
    coefficients = np.atleast_2d(coefficients)
    parts = (into.size,) if len(coefficients) == 1 else ends

    def subtract(place: slice, block: NDArray[Any]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # each thread has a state of its own
            row = coefficients.astype(block.dtype)
            for number, columns in split_at(parts, place):
                there = slice(place.start + columns.start, place.start + columns.stop)
                into[there] = into[there] - row[number] @ block[:, columns]

    for _ in vectors.each_chunk(vectors.in_float64, subtract):
        pass


def total(
    coefficients: FloatArray, vectors: Vectors, dtype: Any = np.float64, *, ends: Sequence[int] = ()
) -> NDArray[Any]:
    """Return Σ_k c_k u_k, shape (d,).

    In float64 it is, to the bit, what `weighted_sum` subtracts.
    """
    values = np.zeros(vectors.size, dtype)
    weighted_sum(-coefficients, vectors, into=values, ends=ends)
    return values


def combine(coefficients: FloatArray, vectors: Vectors) -> Vectors:
    """Return Σ_k c_k u_k as one new vector.

    Where one coefficient is 1 and the others 0, to the bit that one.

    That one stays where it is if it is borrowed, or lies in a file, since there may be no memory
    for it.
    """
    (used,) = coefficients.nonzero()
    if len(used) == 1 and coefficients[used[0]] == 1.0:
        (row,) = vectors[int(used[0])].blocks
        return Vectors(
            (row if isinstance(row, np.memmap | Borrowed) else np.array(row),), vectors.extreme
        )
    return Vectors.of(
        total(coefficients, vectors, vectors.blocks[0].dtype), extreme=vectors.extreme
    )

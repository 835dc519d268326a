"""The replies of a round as flat updates u_k = w − w_k."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbloom.text import text_if

from .arrays import FloatArray, Model
from .layout import Layout
from .vectors import (
    SMALLEST_SQUARE,
    Borrowed,
    DeviceRows,
    Matrix,
    Vectors,
    gram_matrices,
    merge_equal_rows,
    squares_and_products,
    subtract_sum,
)

# Numbers of whole rows that are checked and subtracted before the next ones are read.
CACHED_NUMBERS = 262144

# Entries of float64 updates beyond this have no finite square, so the reply is refused.
MAX_ENTRY = 1e150

# Square sums of updates in this range need no closer look.
SAFE_SQUARES = (1e-20, 1e20)

# If the largest entry of a row is outside 2^±40, the round's numbers are multiplied in float64: no
# product then overflows.
SAFE_EXPONENT = 40


class NotFiniteError(ValueError):
    """A reply with an array, or an update, that is not finite."""


class Updates:
    """The replies of one round as flat updates, in the order of client names.

    Either `add` gets models and does not copy them: their arrays must not change. Or flat models
    are in the rows of `matrix`, of shape (at least m, d), and `add_rows` turns them into updates.
    The matrix may lie on a device. `screen` comes next.

    Parameters
    ----------
    of
        What errors call the models, such as "snapshot"; "": the reply's.
    """

    def __init__(self, layout: Layout, matrix: Matrix | None = None, of: str = "") -> None:
        self.layout = layout
        self._of = text_if(of, f" of the {of}")
        self._rows = Borrowed(layout) if matrix is None else matrix
        self._buffer_names = (*layout.buffers, *layout.integers)
        self._buffers: list[Model] = []
        self._needs_float64: list[bool] = []
        self._unusable: dict[int, ValueError] = {}  # by place, found before `screen`
        self._squares: FloatArray | None = None
        self._products: FloatArray | None = None

    @property
    def matrix(self) -> Matrix:
        """The rows that were given: those in use are updates, those after them are free."""
        if isinstance(self._rows, Borrowed):
            raise TypeError("these updates are borrowed from models, and lie in no matrix")
        return self._rows

    def __len__(self) -> int:
        """Return m, the number of updates."""
        return len(self._buffers)

    def add(self, arrays: Model) -> None:
        """Add u = w − `arrays`, with copies of its buffers."""
        if not isinstance(self._rows, Borrowed):
            raise TypeError(
                "these updates lie in a matrix: write the model into its next row, and call"
                " add_rows"
            )
        self._rows.add(arrays)
        self._add_buffers([arrays])

    def add_rows(self, buffers: Sequence[Model]) -> None:
        """Turn the rows of `matrix` after those in use, which hold flat models, into updates.

        `buffers` has the buffers and integer arrays of each new row's model.
        """
        first = len(self)
        matrix = self.matrix
        self._add_buffers(buffers)
        if isinstance(matrix, DeviceRows):
            matrix[first : len(self)].subtract_from(self.layout.flat)
            return
        step = max(1, CACHED_NUMBERS // max(1, self.layout.size))
        for start in range(first, len(self), step):
            rows = matrix[start : min(start + step, len(self))]
            with np.errstate(over="ignore", invalid="ignore"):
                for k in map(int, np.flatnonzero(~np.isfinite(np.vecdot(rows, rows)))):
                    self._mark_unusable(
                        start + k, {name: rows[k][place] for name, place in self.layout.slices}
                    )
                np.subtract(self.layout.flat, rows, out=rows)

    def _add_buffers(self, models: Sequence[Model]) -> None:
        first = len(self)
        names = self._buffer_names
        if names:
            for model in models:
                self._buffers.append({name: model[name].copy() for name in names})
        else:
            self._buffers += models
        self._needs_float64 += [False] * len(models)
        self._clear_cache()
        if self.layout.buffers:
            for place in range(first, len(self)):
                self._mark_unusable(
                    place, {name: self._buffers[place][name] for name in self.layout.buffers}
                )

    def _mark_unusable(self, place: int, arrays: Model) -> None:
        """Mark a reply as unusable if an entry of these arrays is not finite."""
        wrong = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if wrong:
            self._unusable[place] = NotFiniteError(f"array {wrong[0]!r}{self._of} is not finite")

    def screen(
        self, *, gram: bool, by_array: bool = False, below: Sequence[Vectors] = ()
    ) -> dict[int, ValueError]:
        """Return the reasons why updates cannot be used, by their places.

        The same pass computes the squared norms and, with `gram`, the Gram matrix, whole or
        `by_array`, with the rows of `below` after the updates.
        """
        m = len(self)
        if not m:
            return {}
        rows = self.vectors
        ends = tuple[int, ...]()
        together = Vectors.concat([rows, *below])
        # With the rows of `below`, updates might no longer be multiplied in float64.
        if gram and rows.in_float64 == together.in_float64:
            rows = together
            ends = self.layout.ends if by_array else (self.layout.size,)
        squares, products = squares_and_products(rows, ends)
        squares = squares[:m]
        safe = (squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])  # NaN is not safe
        for k in map(int, np.flatnonzero(~safe)):
            if isinstance(self._rows, Borrowed) and not np.isfinite(squares[k]):
                self._mark_unusable(k, self._rows.model(k))
            elif isinstance(self._rows, DeviceRows):
                self._mark_unusable(k, self.layout.arrays_of(self._rows[k]))
            if k not in self._unusable:
                try:
                    self._needs_float64[k] = needs_float64(self._rows[k])
                except ValueError as reason:
                    self._unusable[k] = reason
        if not any(self._needs_float64):
            self._squares = squares
            self._products = products if ends else None
        return self._unusable

    def _clear_cache(self) -> None:
        self._squares = None
        self._products = None

    def remove(self, *places: int) -> None:
        """Drop the rows at `places`.

        The rows after them move up one at a time, so that they are never all copied at once.
        """
        left = [k for k in range(len(self)) if k not in places]
        if isinstance(self._rows, Borrowed):
            self._rows.keep(left)
        else:
            for to, k in enumerate(left):
                if to != k:
                    self._rows[to] = self._rows[k]
        self._unusable = {to: self._unusable[k] for to, k in enumerate(left) if k in self._unusable}
        self._needs_float64 = [self._needs_float64[k] for k in left]
        self._buffers = [self._buffers[k] for k in left]
        self._clear_cache()

    @property
    def norms(self) -> FloatArray:
        """‖u_k‖, shape (m,)."""
        return np.asarray(np.sqrt(self._measured()))

    @property
    def squared_norms(self) -> FloatArray:
        """‖u_k‖², shape (m,); 0 below SMALLEST_SQUARE."""
        return np.where(self._measured() < SMALLEST_SQUARE, 0.0, self._measured())

    def _measured(self) -> FloatArray:
        """Return the squared norms; they are cached, because they cost a pass over all updates."""
        if self._squares is None:
            self._squares, _ = squares_and_products(self.vectors)
        return self._squares

    def gram(self, vectors: Vectors, *, exact: bool) -> FloatArray:
        """Return the Gram matrix of the updates and the rows after them.

        `screen` may have computed it.
        """
        return np.asarray(self._gram_matrices(vectors, (self.layout.size,), exact)[0])

    def grams(self, vectors: Vectors, *, exact: bool) -> FloatArray:
        """Return the same for each trainable array, shape (L, rows, rows)."""
        return self._gram_matrices(vectors, self.layout.ends, exact)

    def _gram_matrices(self, vectors: Vectors, ends: Sequence[int], exact: bool) -> FloatArray:
        known = self._products
        if known is None or known.shape != (len(ends), len(vectors), len(vectors)) or exact:
            return gram_matrices(vectors, ends, exact=exact)
        return merge_equal_rows(vectors, known.copy(), exact=exact)

    def buffers(self, place: int) -> Model:
        """Return the buffers and integer arrays of the model at a place."""
        return self._buffers[place]

    def buffer_changes(self) -> FloatArray:
        """Return the distance of each reply's buffers to the global model's, shape (m,)."""
        return np.array(
            [self.layout.distance(model, self.layout.buffers) for model in self._buffers]
        )

    @property
    def vectors(self) -> Vectors:
        """The updates added so far, without a copy."""
        rows = self._rows if isinstance(self._rows, Borrowed) else self._rows[: len(self)]
        return Vectors((rows,), any(self._needs_float64))

    def model_after(
        self, coefficients: FloatArray, vectors: Vectors, prior: FloatArray, counts: FloatArray
    ) -> tuple[Model, float]:
        """Return w − Σ_k c_k `vectors`_k in the model's dtypes, and the result of `subtract_sum`.

        `coefficients` may have a row for each trainable array.
        """
        flat = self.layout.flat.copy()
        square = subtract_sum(coefficients, vectors, into=flat, ends=self.layout.ends)
        return self.model_with(flat, prior, counts), square

    def model_with(
        self, flat: NDArray[Any], prior: FloatArray, counts: FloatArray
    ) -> dict[str, NDArray[Any]]:
        """Return the model with `flat` as its trainable part.

        Buffers are averaged by `prior`. Integer arrays are those of the client with the most
        examples (the first of several). Shared arrays get their parameter's values, and frozen
        arrays stay unchanged.

        Raises
        ------
        ValueError
            If an array is not finite.
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
                replied = (buffers[name].astype(np.float64) for buffers in self._buffers)
                after = sum(p * buffer for p, buffer in zip(prior, replied, strict=True))
            else:
                after = self._buffers[largest][name]
            with np.errstate(over="ignore"):
                model[name] = np.asarray(after).astype(array.dtype, copy=False)
            if not np.isfinite(model[name]).all():
                raise ValueError(
                    f"array {name!r} after the step is beyond the range of {array.dtype}"
                )
        return model


def needs_float64(row: NDArray[Any]) -> bool:
    """Return whether the largest entry of an update is outside 2^±SAFE_EXPONENT.

    Raises
    ------
    ValueError
        If the square of an entry is not finite.
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

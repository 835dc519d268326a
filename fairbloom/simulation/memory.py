"""Storage for a round's updates: on a card, in memory or, above a budget, in a temporary file."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.rounds.arrays import FloatArray, split_at
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.vectors import DeviceRows, Matrix, Vectors
from fairbloom.system.machine import half_of_memory
from fairbloom.tasks.inputs import move
from fairbloom.tasks.models import arrays_of

GIGABYTE = 1_000_000_000

# The part of a card's memory that a round's updates may take. It is a share of all memory, because
# free memory differs from run to run: sums on the card and on the processor differ by rounding.
SHARE = 1 / 8

# Numbers that are multiplied at once, in a copy in float64 of 1 GB: a card whose updates fit into
# SHARE of its memory has room for it.
CHUNK_NUMBERS = 2**27


def empty_matrix(
    rows: int, columns: int, dtype: DTypeLike, gigabytes: float = 0.0, *, of: int = 1
) -> NDArray[Any]:
    """Return an empty matrix, one `of` several that share a budget of `gigabytes`.

    A budget of 0 means half of the machine's memory. Beyond the budget, the matrix is in an unnamed
    file in the folder for temporary files, which is deleted with the matrix.
    """
    size = rows * columns * np.dtype(dtype).itemsize
    folder = tempfile.gettempdir()
    if size * of <= (gigabytes * GIGABYTE or half_of_memory()):
        return np.empty((rows, columns), dtype)
    with tempfile.TemporaryFile() as file:
        try:  # allocate now: on a full disk, a later write to mapped memory would kill the process
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                os.truncate(file.fileno(), size)
        except OSError as error:
            free = shutil.disk_usage(folder).free / GIGABYTE
            raise FairbloomError(
                f"the updates of {rows} clients take {size / GIGABYTE:.1f} GB, more than memory ="
                f" {gigabytes:g} allows, and {folder} has no room for them ({free:.1f} GB are"
                " free): raise memory, lower fraction, or set TMPDIR to a folder with room"
            ) from error
        return np.memmap(file, dtype, mode="r+", shape=(rows, columns))


class CardRows(DeviceRows):
    """Updates in the rows of a tensor of shape (m, d)."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.shape = (tensor.shape[0], tensor.shape[1])
        self.dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype

    def __getitem__(self, key: Any) -> Any:
        """Return some of the rows, or a copy of one row or of a part of the matrix."""
        part = self.tensor[key]
        return CardRows(part) if isinstance(key, slice) else part.cpu().numpy().copy()

    def __setitem__(self, key: Any, values: NDArray[Any]) -> None:
        """Overwrite a row, or a part of the matrix."""
        self.tensor[key] = torch.tensor(values)

    def subtract_from(self, flat: NDArray[Any]) -> None:
        """Replace each row by `flat` minus the row."""
        torch.sub(move(torch.tensor(flat), self.tensor.device), self.tensor, out=self.tensor)

    def multiply(self, vectors: Vectors, ends: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Return the result of `squares_and_products`."""
        m = len(vectors)
        squares = self.tensor.new_zeros(m, dtype=torch.float64)
        products = squares.new_zeros(len(ends), m, m)
        for chunk, block in self._chunks(vectors):
            squares += torch.linalg.vecdot(block, block)
            for number, columns in split_at(ends, chunk) if ends else ():
                products[number] += block[:, columns] @ block[:, columns].T
        # The order of a sum may differ between an entry and its mirror image.
        products = (products + products.mT) / 2.0
        found = arrays_of({"squares": squares, "products": products})
        return found["squares"], found["products"]

    def subtract_sum(
        self, coefficients: FloatArray, vectors: Vectors, into: NDArray[Any], ends: Sequence[int]
    ) -> float:
        """Subtract Σ_k c_k u_k from `into`; see the function `subtract_sum`."""
        weights = move(torch.tensor(coefficients), self.tensor.device)
        step = weights.new_zeros(into.size)
        for chunk, block in self._chunks(vectors):
            for number, columns in split_at(ends, chunk):
                step[chunk][columns] = weights[number] @ block[:, columns]
        before = move(torch.from_numpy(into), self.tensor.device)
        # The values of `into` come down once, in its own dtype.
        after = (before - step).to(before.dtype)
        change = after.double() - before
        found = arrays_of({"after": after, "square": torch.linalg.vecdot(change, change)})
        into[...] = found["after"]
        return float(found["square"])

    def _chunks(self, vectors: Vectors) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of columns of all rows in float64; rows in this process are copied."""
        width = max(1, CHUNK_NUMBERS // len(vectors))
        for start in range(0, vectors.size, width):
            chunk = slice(start, min(start + width, vectors.size))
            parts = list[Tensor]()
            for block in vectors.blocks:
                if isinstance(block, CardRows):
                    parts.append(block.tensor[:, chunk].double())
                elif isinstance(block, np.ndarray):  # a row that the method keeps
                    columns = torch.tensor(block[:, chunk]).double()
                    parts.append(move(columns, self.tensor.device))
            # one part needs no second copy
            yield chunk, torch.cat(parts) if parts[1:] else parts[0]


def rows_on_card(layouts: Sequence[Layout], rows: int, device: torch.device) -> list[CardRows]:
    """Return a matrix on a card for each layout, or none if they do not fit there."""
    size = sum(rows * layout.size * layout.dtype.itemsize for layout in layouts)
    if device.type != "cuda" or size > SHARE * torch.cuda.mem_get_info(device)[1]:
        return []
    dtype = getattr(torch, layouts[0].dtype.name)  # that of second models, too
    return [
        CardRows(torch.empty(rows, layout.size, dtype=dtype, device=device)) for layout in layouts
    ]


def write_models(
    matrix: Matrix,
    rows: Sequence[int],
    slices: Iterable[tuple[str, slice]],
    models: Mapping[str, Tensor],
) -> None:
    """Write the trainable arrays of models, of shape (k, *shape), into rows of a matrix.

    `slices` has all of its columns, in their order.
    """
    if isinstance(matrix, CardRows):
        places = move(torch.tensor(rows), matrix.tensor.device)
        # One copy into the rows, not one for each array: a launch takes longer than a small array.
        parts = [models[name].detach().reshape(len(rows), -1) for name, _ in slices]
        flat = torch.cat(parts, 1)
        matrix.tensor.index_copy_(0, places, flat.to(matrix.tensor.dtype))
    else:
        arrays = arrays_of(models)
        for name, columns in slices:
            matrix[rows, columns] = arrays[name].reshape(len(rows), -1)

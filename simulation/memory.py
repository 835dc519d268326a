"""Storage for a round's updates: in memory or, above a budget, in a temporary file."""

import os
import shutil
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fairbloom.errors import FairbloomError

GIGABYTE = 1_000_000_000


def empty_matrix(
    rows: int, columns: int, dtype: DTypeLike, gigabytes: float = 0.0, *, of: int = 1
) -> NDArray[Any]:
    """Return an empty matrix, one `of` several that share a budget of `gigabytes`.

    A budget of 0 means half of the machine's memory. Beyond the budget, the matrix is in an unnamed
    file in the folder for temporary files, which is deleted with the matrix.
    """
    size = rows * columns * np.dtype(dtype).itemsize
    folder = tempfile.gettempdir()
    budget = gigabytes * GIGABYTE
    if not budget:
        budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if size * of <= budget:
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

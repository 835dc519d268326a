"""Where the updates of a round lie: in memory, or in a temporary file where they are more than a budget."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fairbloom.errors import FairbloomError

GIGABYTE = 1_000_000_000

CGROUPS = Path("/proc/self/cgroup")
"""Says to which control group this process belongs, whose memory a container or service limits; Linux alone has it."""

HIERARCHY = Path("/sys/fs/cgroup")
"""Where control groups of version 2 lie as folders, with their limits."""


@dataclass(frozen=True)
class Memory:
    """How much memory the updates of a round may take, and where the file lies that holds more.

    A budget of 0 is half of what this process may use. A folder of None is the one for temporary files, by TMPDIR.
    """

    gigabytes: float = 0.0
    folder: Path | None = None

    def matrix(self, rows: int, columns: int, dtype: DTypeLike, *, of: int = 1) -> NDArray[Any]:
        """Return an empty matrix, one `of` several that share the budget.

        A file that holds it has no name and goes with it.
        """
        size = rows * columns * np.dtype(dtype).itemsize
        if size * of <= (self.gigabytes * GIGABYTE or 0.5 * physical_memory()):
            return np.empty((rows, columns), dtype)
        folder = self.folder or Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                reserve(file.fileno(), size)
            except OSError as error:
                free = shutil.disk_usage(folder).free / GIGABYTE
                raise FairbloomError(
                    f"the updates of {rows} clients take {size / GIGABYTE:.1f} GB, more than memory = "
                    f"{self.gigabytes:g} allows, and {folder} has no room for them ({free:.1f} GB are free): raise "
                    f"memory, lower fraction, or set TMPDIR to a folder with room"
                ) from error
            return np.memmap(file, dtype, mode="r+", shape=(rows, columns))


def reserve(file: int, size: int) -> None:
    """Reserve this many bytes of disk for an open file: a full disk raises OSError here and not when it is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


@cache
def physical_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the least limit of its control groups.

    A container may see its group at the root of the hierarchy, under whatever name the host has for it.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    named = [line[3:] for line in CGROUPS.read_text().splitlines() if line[:3] == "0::"] if CGROUPS.is_file() else []
    for place in named:
        group = HIERARCHY / place.lstrip("/")
        for folder in (group, *group.parents):
            file = folder / "memory.max"
            if folder.is_relative_to(HIERARCHY) and file.is_file() and (limit := file.read_text().strip()) != "max":
                limits.append(int(limit))
    return min(limits)
